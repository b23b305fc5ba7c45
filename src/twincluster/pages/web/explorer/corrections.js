// The corrections. Each asks for what it needs, makes one edit, and reports it.
import { count, make, plural } from "../parts/dom.js";
import { ask, field, messageOf, Refusal, textInput } from "../parts/dialogs.js";

/** @import { Cluster, Group } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

/** The keys, for the list behind `?`. */
export const KEYS = [
  ["arrow keys", "go through the images"], ["space", "select or leave out the image"], ["shift with arrow keys or click", "select a range"],
  ["ctrl+A", "select all"], ["escape", "select none; in a cluster: back to all clusters"], ["enter", "open the image, or the cluster"],
  ["r", "rename the cluster"], ["m", "merge clusters; with images selected: move them"], ["n", "put the selected images into a new cluster"],
  ["c", "these are right: the selected images become examples"],
  ["l", "more like these: grow the selected images, fifty at a time, from the whole set"],
  ["a", "accept all proposals"], ["y", "accept the proposed group"], ["x", "refuse the proposed group, or the selected images of it"],
  ["1 to 5", "teach: it belongs to this cluster"], ["0", "teach: to none of these"],
  ["s", "split the cluster, or split off the selected images"], ["j", "mark as junk, or take out of the junk"],
  ["u", "undo"], ["shift+U", "redo"], ["/", "find"], ["?", "this list"],
];

const ASKED_ABOVE = 50; // images that are marked as junk without a question

export class Corrections {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
  }

  get talk() {
    return this.app.talk;
  }

  /** @type {(kind: string, fields: Record<string, unknown>, done: string) => Promise<void>} */
  async edit(kind, fields, done) {
    await this.talk.edit(kind, fields);
    this.app.tell(done);
  }

  /**
   * Makes an edit without asking; the page shows errors.
   * @type {(kind: string, fields: Record<string, unknown>, done: string) => Promise<void>}
   */
  async now(kind, fields, done) {
    await this.done(kind, fields, done);
  }

  /**
   * The same; returns whether it succeeded.
   * @type {(kind: string, fields: Record<string, unknown>, done: string) => Promise<boolean>}
   */
  async done(kind, fields, done) {
    try {
      await this.edit(kind, fields, done);
    } catch (error) {
      this.app.tell(messageOf(error));
      return false;
    }
    return true;
  }

  /** @param {number[]} rows */
  images(rows) {
    return plural(rows.length, this.talk.one);
  }

  /**
   * Actions on selected images: each has a button, and a key that KEYS explains.
   * @param {number | null} from  cluster that all of them are in
   * @param {boolean} junk  whether they are junk
   * @returns {{key: string, text: string, act: (rows: number[]) => unknown}[]}
   */
  ofImages(from, junk) {
    /** @type {(key: string, text: string, act: (rows: number[]) => unknown) => {key: string, text: string, act: typeof act}} */
    const action = (key, text, act) => ({ key, text, act });
    return [
      action("m", "Move…", (rows) => this.move(rows, from)),
      action("n", "New cluster…", (rows) => this.moveToNew(rows)),
      action("c", "These are right", (rows) => this.confirm(rows)),
      ...(from === null ? [] : [action("s", "Split off…", (rows) => this.splitOff(from, rows))]),
      junk ? action("j", "Not junk", (rows) => this.unjunk(rows)) : action("j", "Junk", (rows) => this.junk(rows)),
    ];
  }

  /** @param {number} id */
  async rename(id) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return undefined;
    const name = textInput(cluster.named ? cluster.name : "");
    return ask({
      title: `Rename ${cluster.name}`, fields: [field("Name", name)], action: "Rename",
      act: () => this.edit("rename", { cluster: id, name: name.value.trim() }, `Renamed to ${name.value.trim()}.`),
    });
  }

  /**
   * Merges several clusters into the largest; if there is only one, asks for another.
   * @param {number[]} ids
   */
  async merge(ids) {
    const known = ids.map((id) => this.talk.byId.get(id)).filter((one) => one !== undefined);
    if (known.length === 1) return this.mergeInto(known[0]);
    if (!known.length) return this.app.tell("Tick the clusters to merge first.");
    const largest = [...known].sort((one, other) => Number(other.named) - Number(one.named) || other.size - one.size);
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

  /** @param {Cluster} cluster */
  async mergeInto(cluster) {
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

  /** @param {number} id */
  async split(id) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return undefined;
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

  /** @type {(id: number, rows: number[]) => Promise<unknown>} */
  async splitOff(id, rows) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return undefined;
    const { name: now, named } = cluster;
    const name = textInput("", { placeholder: named ? `${now} 2` : `${id}, part 2` });
    return ask({
      title: `Split off ${this.images(rows)}`, text: "New images will go to whichever part is nearer.", action: "Split off",
      fields: [field("Name of the new cluster", name)],
      act: () => this.edit("split_off", { cluster: id, rows, name: name.value.trim() || undefined }, `Split off ${this.images(rows)}.`),
    });
  }

  /**
   * Moves images. `from` is the cluster of all of them, if it is the same; if there is no other, asks for a new one.
   * @param {number[]} rows
   * @param {number | null} from
   */
  async move(rows, from = null) {
    const others = this.talk.state.clusters.filter(({ id }) => id !== from);
    if (!others.length) return this.moveToNew(rows);
    const picker = clusterPicker(others, "Cluster to move to");
    return ask({
      title: `Move ${this.images(rows)}`, fields: picker.body, action: "Move",
      act: async () => {
        const to = picker.value();
        return this.edit("move", { rows, to }, `Moved ${this.images(rows)} to ${this.talk.nameOf(to)}.`);
      },
    });
  }

  /** @param {number[]} rows */
  async moveToNew(rows) {
    const name = textInput("", { placeholder: "a number, if left empty" });
    return ask({
      title: `New cluster of ${this.images(rows)}`, fields: [field("Name", name)], action: "Make it",
      act: () => this.edit("move", { rows, name: name.value.trim() || undefined }, `A new cluster has ${this.images(rows)}.`),
    });
  }

  /**
   * Confirms that images are in the right cluster, which makes them examples.
   * @param {number[]} rows
   */
  confirm(rows) {
    return this.now("confirm", { rows }, `${this.images(rows)} confirmed: no computation moves ${rows.length === 1 ? "it" : "them"}.`);
  }

  /**
   * Accepts proposed groups; null stands for all. Returns whether it succeeded.
   * @param {Group[] | null} groups
   * @param {number} images
   */
  async accept(groups, images) {
    const fields = groups ? { groups: groups.map(({ source, to }) => [source, to]) } : {};
    return this.done("accept", fields, `Moved ${plural(images, this.talk.one)} as proposed. U takes it back.`);
  }

  /** @param {Group} group */
  async refuse({ source, to, size }) {
    return this.done("refuse", { groups: [[source, to]] }, `${plural(size, this.talk.one)} will not be proposed for ${this.talk.nameOf(to)} again.`);
  }

  /** @type {(rows: number[], to: number) => Promise<boolean>} */
  refuseRows(rows, to) {
    return this.done("refuse", { rows, to: [to] }, `${this.images(rows)} will not be proposed for ${this.talk.nameOf(to)} again.`);
  }

  /**
   * Many images are asked about once: a key is easily pressed. Move asks by itself.
   * @param {number[]} rows
   */
  junk(rows) {
    const done = `${this.images(rows)} marked as junk. U takes it back.`;
    if (rows.length <= ASKED_ABOVE) return this.now("junk", { rows }, done);
    return ask({
      title: `Mark ${this.images(rows)} as junk?`, text: "They leave their clusters, tables and folders; no file is deleted.", action: "Junk",
      act: () => this.edit("junk", { rows }, done),
    });
  }

  /** @param {number[]} rows */
  unjunk(rows) {
    return this.now("unjunk", { rows }, `${this.images(rows)} back in place.`);
  }

  undo() {
    return this.step("undo", "Undone");
  }

  redo() {
    return this.step("redo", "Done again");
  }

  /**
   * Undoes or redoes; earlier edits must be saved first, since they decide what it affects.
   * @param {"undo" | "redo"} kind
   * @param {string} done
   */
  step(kind, done) {
    return this.talk.inTurn(async () => {
      const what = this.talk.state[kind];
      if (what) await this.talk.send(kind, {});
      this.app.tell(what ? `${done}: ${what}.` : `There is nothing to ${kind}.`);
    }).catch((error) => this.app.tell(messageOf(error)));
  }
}

/**
 * A list of clusters with a search field; `value()` is the id of the selected one.
 * @param {Cluster[]} clusters
 * @param {string} label
 */
export function clusterPicker(clusters, label) {
  const list = make("select", { size: 7, "aria-label": label });
  const narrow = make("input", { type: "search", autocomplete: "off", placeholder: "Find a cluster", "aria-label": "Find a cluster", "data-first": true });
  const fill = () => {
    const wanted = narrow.value.trim().toLowerCase();
    const found = clusters.filter(({ name, id }) => `${name} ${id}`.toLowerCase().includes(wanted));
    list.replaceChildren(...found.map(({ id, name, size }) => make("option", { value: id, text: `${name} (${count(size)})` })));
    if (list.options.length) list.selectedIndex = 0;
  };
  narrow.addEventListener("input", fill);
  narrow.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    list.selectedIndex = Math.max(0, Math.min(list.options.length - 1, list.selectedIndex + step));
  });
  fill();
  const value = () => {
    if (list.selectedIndex < 0) throw new Refusal("Choose a cluster.");
    return Number(list.value);
  };
  return { body: [narrow, list], value };
}
