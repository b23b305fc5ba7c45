// The tree in the explorer: any cut can be looked at, and used as one edit.
import { button, make, note, plural } from "../parts/dom.js";
import { messageOf } from "../parts/dialogs.js";
import { TreePanel } from "../parts/tree.js";

/** @import { TreeData } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

const TREE_AGAIN = 1500; // milliseconds after which a tree that is not ready is asked for again

export class TreeView {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    /** @type {TreePanel | null} */
    this.panel = null;
    this.asked = 0;
    this.number = -1; // of the edit that the tree is shown after
    this.text = note("Fewer or more clusters, without training again. Look at any number; nothing changes until you use it.");
    this.stage = make("div", {});
    this.body = make("section", { class: "tree-view", "aria-labelledby": "title" },
      make("h2", { id: "title", class: "title", text: "Tree of clusters" }), this.text, this.stage);
  }

  enter() {
    this.refresh();
  }

  async refresh() {
    const { talk } = this.app;
    if (this.number === talk.state.number) return;
    const turn = ++this.asked;
    /** @type {TreeData & {absent?: string, waiting?: boolean}} */
    let tree;
    try {
      tree = await talk.ask("/api/tree");
    } catch (error) {
      this.app.tell(messageOf(error));
      return;
    }
    if (turn !== this.asked) return;
    if (tree.absent) {
      this.text.textContent = tree.waiting ? "The tree is being made …" : `No tree: ${tree.absent}.`;
      if (tree.waiting) setTimeout(() => { if (this.body.isConnected) this.refresh(); }, TREE_AGAIN);
      return;
    }
    this.number = tree.number;
    this.text.textContent = "Fewer or more clusters, without training again. Look at any number; nothing changes until you use it.";
    const { pictures, viewer } = this.app;
    this.panel = new TreePanel(tree, {
      one: talk.one,
      nameOf: (id) => talk.nameOf(id),
      thumbs: (rows) => rows.map((row, at) => pictures.thumb(row, `Open ${talk.one} ${row}`, () => viewer.open(rows, at))),
      deeds: (panel) => this.deeds(panel),
      atOnce: 60,
    });
    this.stage.replaceChildren(this.panel.body);
  }

  /** @param {TreePanel} panel */
  deeds(panel) {
    if (panel.isNow) return [button("Use these clusters", () => {}, { class: "main", disabled: true })];
    return [
      button(`Use these ${plural(panel.total, "cluster")}`, () => this.use(panel), { class: "main" }),
      button("Back to the clusters there are", () => panel.reset()),
    ];
  }

  /** @param {TreePanel} panel */
  use(panel) {
    return this.app.corrections.now("cut", { groups: panel.groups }, `${plural(panel.total, "cluster")} now. U takes it back.`);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key !== "Escape") return false;
    this.app.go("clusters");
    return true;
  }
}
