// The tree of clusters: cuts of it are made here, from the fine clusters, without asking anybody.
import { button, count, decimal, make, note, plural } from "./dom.js";
import { gallery } from "./gallery.js";
import { swatch } from "./palette.js";

/** @import { Child, TreeData } from "../types.js" */
/** @import { Thumb } from "./gallery.js" */

const ON_CARD = 8; // images of a card

/** Groups of fine clusters ("leaves"), each a branch of the tree. Nodes are leaves, then joins in their order. */
export class Branches {
  /** @param {TreeData} tree */
  constructor({ joins, leaves, clusters }) {
    this.count = leaves.length;
    this.joins = joins;
    const alive = new Set(clusters.flatMap((cluster) => cluster.leaves)); // those of clusters made by hand have left
    /** @type {number[][]} living leaves under each node, rising */
    this.members = leaves.map((_, leaf) => (alive.has(leaf) ? [leaf] : []));
    this.parents = new Array(2 * this.count - 1).fill(-1);
    joins.forEach((pair, at) => {
      this.members.push(pair.flatMap((child) => this.members[child]).sort((one, other) => one - other));
      for (const child of pair) this.parents[child] = this.count + at;
    });
    this.most = alive.size;
  }

  /**
   * The groups of a level.
   * @param {number} wanted
   */
  level(wanted) {
    let groups = [this.members[this.members.length - 1]].filter((leaves) => leaves.length);
    for (let node = this.members.length - 1; node >= this.count && groups.length < wanted; node -= 1) {
      const parts = this.joins[node - this.count].map((child) => this.members[child]).filter((leaves) => leaves.length);
      if (parts.length < 2) continue;
      groups = groups.flatMap((leaves) => (leaves.length === this.members[node].length && leaves[0] === this.members[node][0] ? parts : [leaves]));
    }
    return groups;
  }

  /**
   * The lowest node with all of some leaves.
   * @param {number[]} leaves
   */
  above(leaves) {
    return this.members.findIndex((members) => members.length >= leaves.length && leaves.every((leaf) => members.includes(leaf)));
  }

  /**
   * The two parts of a group; null for a single leaf.
   * @param {number[]} leaves
   */
  parts(leaves) {
    let node = this.above(leaves);
    while (node >= this.count) {
      const inside = this.joins[node - this.count].map((child) => this.members[child].filter((leaf) => leaves.includes(leaf)));
      if (inside.every((part) => part.length)) return inside;
      node = this.joins[node - this.count][inside[0].length ? 0 : 1];
    }
    return null;
  }

  /**
   * The groups with one joined to the rest of the smallest branch that holds more; null for the whole tree.
   * @param {number[][]} groups
   * @param {number} at
   */
  joined(groups, at) {
    const node = this.above(groups[at]);
    let above = this.parents[node];
    while (above >= 0 && this.members[above].length === this.members[node].length) above = this.parents[above];
    if (above < 0) return null;
    const inside = new Set(this.members[above]);
    const [ends, stay] = [true, false].map((wanted) => groups.filter((leaves) => leaves.some((leaf) => inside.has(leaf)) === wanted));
    return [ends.flat().sort((one, other) => one - other), ...stay];
  }
}

/** A slider, the natural cuts, and a card for each group, whose branch can be opened and closed. */
export class TreePanel {
  /**
   * @param {TreeData} tree
   * @param {object} options
   * @param {string} options.one  what the run is about, in the singular
   * @param {(cluster: number) => string} options.nameOf
   * @param {(rows: number[]) => Thumb[]} options.thumbs
   * @param {(panel: TreePanel) => Child[]} options.deeds  what can be done with the cut
   * @param {number} options.atOnce  cards that are drawn at first
   */
  constructor(tree, { one, nameOf, thumbs, deeds, atOnce }) {
    this.tree = tree;
    this.one = one;
    this.nameOf = nameOf;
    this.thumbs = thumbs;
    this.deeds = deeds;
    this.branches = new Branches(tree);
    this.now = tree.clusters.map(({ leaves }) => leaves);
    this.groups = this.now;
    /** @type {number | null} the number the groups are a level of; null after a branch was opened or closed */
    this.level = null;
    this.shown = atOnce;
    const { kept } = tree;
    const least = kept.length + Math.min(1, this.branches.most);
    this.slider = make("input", { type: "range", min: least, max: kept.length + this.branches.most, step: 1, "aria-label": "Number of clusters" });
    this.slider.addEventListener("input", () => this.cut(Number(this.slider.value)));
    this.number = make("output", { class: "figure tree-number" });
    this.status = make("p", { class: "note", role: "status" });
    this.bar = make("div", { class: "row tree-deeds" });
    this.grid = make("div", { class: "cards" });
    this.more = button("", () => { this.shown += 2 * atOnce; this.draw(); });
    this.body = make("div", { class: "tree" },
      make("div", { class: "row tree-slider" }, make("span", { text: "Clusters" }), this.slider, this.number),
      this.naturalCuts(), make("div", { class: "tree-head" }, this.bar, this.status), this.grid, make("p", { class: "more" }, this.more));
    this.draw();
  }

  naturalCuts() {
    const { natural, kept } = this.tree;
    if (!natural.length) return note("Two halves of the set agree on no number of clusters better than on the next ones.");
    const best = natural.filter((cut) => cut.best).map((cut) => cut.clusters);
    const buttons = natural.map(({ clusters, agreement, best: isBest }) =>
      button(`${clusters} · ${decimal(agreement)}`, () => this.cut(clusters + kept.length), {
        class: isBest ? "natural best" : "natural", title: `${plural(clusters, "cluster")}: two halves of the set agree to ${decimal(agreement)}`,
      }));
    const equally = best.length > 1 ? ` Equally good: ${best.join(", ")}.` : "";
    return make("div", {}, make("div", { class: "row", role: "group", "aria-label": "Natural cuts" }, make("span", { class: "note", text: "Natural cuts" }), buttons),
      note(`Where two halves of the set, clustered without each other, agree better than with a few clusters more or fewer (1 is equal, 0 chance).${equally}`));
  }

  /** @param {number} wanted */
  cut(wanted) {
    this.level = wanted;
    this.groups = this.branches.level(wanted - this.tree.kept.length);
    this.draw();
  }

  /** Back to the clusters there are. */
  reset() {
    this.level = null;
    this.groups = this.now;
    this.draw();
  }

  /** @param {number} at */
  open(at) {
    const parts = this.branches.parts(this.groups[at]);
    if (!parts) return;
    this.change([...this.groups.slice(0, at), ...parts, ...this.groups.slice(at + 1)], parts[0]);
  }

  /** @param {number} at */
  close(at) {
    const groups = this.branches.joined(this.groups, at);
    if (groups) this.change(groups, groups[0]);
  }

  /**
   * @param {number[][]} groups
   * @param {number[]} focused
   */
  change(groups, focused) {
    this.groups = groups;
    this.level = null;
    this.draw();
    const title = /** @type {HTMLElement | null} */ (this.grid.querySelector(`[data-leaf="${focused[0]}"] h3`));
    title?.focus({ preventScroll: true });
    title?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  /** Clusters after this cut. */
  get total() {
    return this.groups.length + this.tree.kept.length;
  }

  get isNow() {
    const known = new Set(this.now.map((leaves) => leaves.join()));
    return this.groups.length === this.now.length && this.groups.every((leaves) => known.has(leaves.join()));
  }

  /** @param {number[]} leaves */
  sizeOf(leaves) {
    return leaves.reduce((sum, leaf) => sum + this.tree.leaves[leaf].size, 0);
  }

  draw() {
    const { kept } = this.tree;
    this.slider.value = String(this.total);
    this.number.textContent = count(this.total);
    const order = this.groups.map((leaves, at) => ({ leaves, at, size: this.sizeOf(leaves) })).sort((one, other) => other.size - one.size);
    this.grid.replaceChildren(...order.slice(0, this.shown).map((group) => this.card(group)));
    this.more.hidden = order.length <= this.shown;
    this.more.textContent = `Show more of ${count(order.length)}`;
    const stays = kept.length ? ` ${plural(kept.length, "cluster")} that you made, or that nothing is in, stay: ${kept.slice(0, 6).map(this.nameOf).join(", ")}${kept.length > 6 ? " …" : ""}.` : "";
    this.status.textContent = `${this.isNow ? "These are the clusters there are." : `${plural(this.total, "cluster")} instead of ${this.now.length + kept.length}.`}${stays}`;
    this.bar.replaceChildren(...this.deeds(this).filter((part) => part !== null && part !== undefined));
  }

  /** @param {{leaves: number[], at: number, size: number}} group */
  card({ leaves, at, size }) {
    const id = this.clusterOf(leaves);
    const name = this.titleOf(leaves, id);
    const stable = this.tree.stability[this.branches.above(leaves)];
    const facts = [plural(size, this.one), plural(leaves.length, "fine cluster"), `stability ${decimal(stable)}`];
    const opens = button("Open", () => this.open(at), { class: "quiet", "aria-label": `Open ${name}: divide it in two` });
    const closes = button("Close", () => this.close(at), { class: "quiet", "aria-label": `Close ${name}: join it with its branch` });
    opens.disabled = leaves.length < 2;
    closes.disabled = leaves.length === this.branches.most;
    return make("article", { class: "card", "data-leaf": leaves[0] },
      make("h3", { tabindex: "-1" }, id === null ? null : swatch(id), name), note(facts.join(" · ")),
      gallery(this.thumbs(this.typical(leaves)), "typical"), make("p", { class: "row deeds" }, opens, closes));
  }

  /**
   * Images of a group: of its largest leaves in turn, so that all of it is seen.
   * @param {number[]} leaves
   */
  typical(leaves) {
    const largest = leaves.map((leaf) => this.tree.leaves[leaf]).filter(({ rows }) => rows.length).sort((one, other) => other.size - one.size);
    const rows = [];
    for (let turn = 0; rows.length < ON_CARD && largest.some((leaf) => leaf.rows.length > turn); turn += 1) {
      rows.push(...largest.filter((leaf) => leaf.rows.length > turn).map((leaf) => leaf.rows[turn]).slice(0, ON_CARD - rows.length));
    }
    return rows;
  }

  /**
   * The cluster that a group is; null for none.
   * @param {number[]} leaves
   */
  clusterOf(leaves) {
    const key = leaves.join();
    return this.tree.clusters.find((cluster) => cluster.leaves.length === leaves.length && cluster.leaves.join() === key)?.id ?? null;
  }

  /** @type {(leaves: number[], id: number | null) => string} */
  titleOf(leaves, id) {
    if (id !== null) return this.nameOf(id);
    const inside = new Set(leaves);
    const names = this.tree.clusters.filter((cluster) => cluster.leaves.some((leaf) => inside.has(leaf))).map((cluster) => this.nameOf(cluster.id));
    if (names.length === 1) return `Part of ${names[0]}`;
    return `${names.slice(0, 2).join(" + ")}${names.length > 2 ? ` + ${names.length - 2} more` : ""}`;
  }
}
