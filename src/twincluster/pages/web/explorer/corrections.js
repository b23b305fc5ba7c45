// What can be corrected. Each asks for what it needs, does one edit, and says what was done.
import { make, count, plural } from "../parts/dom.js";
import { ask, field, textInput, clusterPicker } from "../parts/dialogs.js";

export class Corrections {
  constructor(app) {
    this.app = app;
  }

  get talk() {
    return this.app.talk;
  }

  async edit(kind, fields, done) {
    await this.talk.edit(kind, fields);
    this.app.tell(done);
  }

  /** An edit without a question; what goes wrong is told. */
  now(kind, fields, done) {
    return this.edit(kind, fields, done).catch((error) => this.app.tell(error.message));
  }

  images(rows) {
    return plural(rows.length, this.talk.one);
  }

  rename(id) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return null;
    const name = textInput(cluster.named ? cluster.name : "");
    return ask({
      title: `Rename ${cluster.name}`, fields: [field("Name", name)], action: "Rename",
      act: () => this.edit("rename", { cluster: id, name: name.value.trim() }, `Renamed to ${name.value.trim()}.`),
    });
  }

  /** Several clusters into the first of them; of one alone, into another that is asked for. */
  merge(ids) {
    const known = ids.map((id) => this.talk.byId.get(id)).filter(Boolean);
    if (known.length === 1) return this.mergeInto(known[0]);
    if (!known.length) return this.app.tell("Tick the clusters to merge first.");
    const largest = [...known].sort((one, other) => other.named - one.named || other.size - one.size);
    const name = textInput(largest[0].named ? largest[0].name : "", { placeholder: largest[0].name });
    return ask({
      title: `Merge ${known.length} clusters`, text: largest.map((one) => one.name).join(", "), action: "Merge",
      fields: [field("Name", name)],
      act: async () => {
        const clusters = largest.map((one) => one.id);
        await this.edit("merge", { clusters, name: name.value.trim() || undefined }, `Merged ${known.length} clusters.`);
        this.app.chosen.clear();
        return () => this.app.go("clusters", clusters[0]);
      },
    });
  }

  mergeInto(cluster) {
    const others = this.talk.state.clusters.filter(({ id }) => id !== cluster.id);
    if (!others.length) return this.app.tell("There is no other cluster to merge with.");
    const picker = clusterPicker(others, "Cluster to merge with");
    return ask({
      title: `Merge ${cluster.name} into another`, fields: picker.body, action: "Merge",
      act: async () => {
        const into = picker.value();
        await this.edit("merge", { clusters: [into, cluster.id] }, `Merged into ${this.talk.nameOf(into)}.`);
        return () => this.app.go(`cluster/${into}`);
      },
    });
  }

  split(id) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return null;
    const many = make("input", { type: "number", min: 2, max: Math.max(2, Math.min(100, cluster.size)), value: 2, required: true, "data-first": true });
    return ask({
      title: `Split ${cluster.name}`, text: "By what the network sees in the images (k-means). The parts are new clusters.",
      fields: [field("Parts", many)], action: "Split",
      act: async () => {
        const before = this.talk.byId;
        await this.talk.edit("split", { cluster: id, parts: Number(many.value) });
        const fresh = this.talk.state.clusters.filter((one) => !before.has(one.id));
        const parts = fresh.slice(0, 6).map((one) => `${one.name} (${count(one.size)})`);
        this.app.tell(`Split ${cluster.name}: ${parts.join("; ")}${fresh.length > 6 ? " …" : "."}`);
        return () => this.app.go("clusters", fresh[0].id);
      },
    });
  }

  splitOff(id, rows) {
    const { name: now, named } = this.talk.byId.get(id);
    const name = textInput("", { placeholder: named ? `${now} 2` : `${id}, part 2` });
    return ask({
      title: `Split off ${this.images(rows)}`, text: "New images will go to whichever part is nearer.", action: "Split off",
      fields: [field("Name of the new cluster", name)],
      act: () => this.edit("split_off", { cluster: id, rows, name: name.value.trim() || undefined }, `Split off ${this.images(rows)}.`),
    });
  }

  /** `from` is the cluster that all of them are in, where they are in one; if there is no other, a new one is made. */
  move(rows, from = null) {
    const others = this.talk.state.clusters.filter(({ id }) => id !== from);
    if (!others.length) return this.moveToNew(rows);
    const picker = clusterPicker(others, "Cluster to move to");
    return ask({
      title: `Move ${this.images(rows)}`, fields: picker.body, action: "Move",
      act: () => {
        const to = picker.value();
        return this.edit("move", { rows, to }, `Moved ${this.images(rows)} to ${this.talk.nameOf(to)}.`);
      },
    });
  }

  moveToNew(rows) {
    const name = textInput("", { placeholder: "a number, if left empty" });
    return ask({
      title: `New cluster of ${this.images(rows)}`, fields: [field("Name", name)], action: "Make it",
      act: () => this.edit("move", { rows, name: name.value.trim() || undefined }, `A new cluster has ${this.images(rows)}.`),
    });
  }

  junk(rows) {
    return this.now("junk", { rows }, `${this.images(rows)} marked as junk. U takes it back.`);
  }

  unjunk(rows) {
    return this.now("unjunk", { rows }, `${this.images(rows)} back in place.`);
  }

  undo() {
    return this.step("undo", "Undone");
  }

  redo() {
    return this.step("redo", "Done again");
  }

  /** What is undone is known only when the edits before it are made. */
  step(kind, said) {
    return this.talk.inTurn(async () => {
      const what = this.talk.state[kind];
      if (what) await this.talk.send(kind, {});
      this.app.tell(what ? `${said}: ${what}.` : `There is nothing to ${kind}.`);
    }).catch((error) => this.app.tell(error.message));
  }
}
