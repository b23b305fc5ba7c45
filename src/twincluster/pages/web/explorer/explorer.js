// Builds the page: the views, which the address names, the toolbar and the keys.
import { messageOf, showDialog } from "../parts/dialogs.js";
import { button, count, find, make, plural } from "../parts/dom.js";
import { CleanUpView } from "./cleanup.js";
import { ClustersView } from "./clusters.js";
import { Corrections, KEYS } from "./corrections.js";
import { Drops } from "./drop.js";
import { Lessons, wouldMove } from "./lessons.js";
import { LikeView } from "./like.js";
import { ListView } from "./lists.js";
import { MapView } from "./map.js";
import { Pictures } from "./pictures.js";
import { GroupView, ProposalsView } from "./proposals.js";
import { Talk } from "./talk.js";
import { TeachView } from "./teach.js";
import { TreeView } from "./tree.js";
import { ImageViewer } from "./viewer.js";

/** @import { ExplorerState, View } from "../types.js" */

/**
 * The views in the order of their links; the address names them. To add one, write its class and add its line here.
 * @type {{name: string, text: (state: ExplorerState, app: Explorer) => string, open: (app: Explorer, rest: string[]) => View, hidden?: (state: ExplorerState, app: Explorer) => boolean}[]}
 */
const VIEWS = [
  { name: "clusters", text: (state) => `Clusters (${count(state.clusters.length)})`, open: (app) => (app.overview ??= new ClustersView(app)) },
  { name: "tree", text: () => "Tree", open: (app) => new TreeView(app) },
  { name: "teach", text: () => "Teach", open: (app, [way]) => (app.teaching ??= new TeachView(app)).choose(way) },
  {
    name: "proposals", text: (state, app) => `Proposals (${count(app.lessons.moves)})`,
    open: (app, [source, to]) => (to === undefined ? new ProposalsView(app) : new GroupView(app, Number(source), Number(to))),
  },
  { name: "map", text: () => "Map", open: (app) => new MapView(app) },
  { name: "cleanup", text: () => "Clean up", open: (app) => new CleanUpView(app) },
  { name: "all", text: (state) => `All ${state.run.kind}`, open: (app) => new ListView(app, "all") },
  { name: "junk", text: (state) => `Junk (${count(state.junk)})`, open: (app) => new ListView(app, "junk") },
  {
    name: "unreadable", text: (state) => `Unreadable (${count(state.unreadable)})`, open: (app) => new ListView(app, "unreadable"),
    hidden: (state) => !state.unreadable,
  },
  {
    name: "like", text: () => "More like these", open: (app) => new LikeView(app, app.like.splice(0)),
    hidden: (state, app) => app.where !== "like",
  },
];

export class Explorer {
  constructor() {
    /** @type {Set<number>} clusters whose boxes are ticked */
    this.chosen = new Set();
    /** @type {View | null} */
    this.view = null;
    /** @type {ClustersView | null} the one view that stays as it was left */
    this.overview = null;
    /** @type {TeachView | null} the same */
    this.teaching = null;
    /** @type {number[]} images that the next view of "more like these" begins with */
    this.like = [];
    this.where = "";
    this.telling = 0;
    /** @type {HTMLAnchorElement[]} */
    this.links = [];
    this.undo = button("Undo", () => this.takeBack(), { "aria-keyshortcuts": "u" });
    this.redo = button("Redo", () => this.corrections.redo(), { "aria-keyshortcuts": "Shift+U" });
    this.talk = new Talk(() => this.refresh());
    this.lessons = new Lessons(this);
    this.pictures = new Pictures(this.talk);
    this.corrections = new Corrections(this);
    this.viewer = new ImageViewer(this);
    this.drops = new Drops(this);
  }

  async start() {
    try {
      await this.talk.load();
    } catch (error) {
      find("main").replaceChildren(make("p", { class: "warning", text: messageOf(error) }));
      return;
    }
    this.links = VIEWS.map(({ name }) => make("a", { href: `#${name}` }));
    find("views").append(...this.links.map((link) => make("li", {}, link)));
    const lookUp = this.talk.one === "row" ? [] : [this.drops.button, this.drops.input];
    find("tools").append(this.undo, this.redo, ...lookUp, button("Keys", showKeys, { "aria-keyshortcuts": "?" }));
    const head = /** @type {HTMLElement} */ (document.querySelector(".top")); // what sticks below it has to know how high it is
    new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${head.offsetHeight}px`)).observe(head);
    window.addEventListener("hashchange", () => {
      for (const dialog of document.querySelectorAll("dialog")) dialog.close(); // it belongs to the view before
      this.route();
    });
    document.addEventListener("keydown", (event) => this.key(event));
    this.talk.watch((text) => this.tell(text), (text) => this.warn(text));
    this.route();
    this.lessons.follow();
  }

  /**
   * Goes to another view; among the clusters, the card of `cluster` gets the focus.
   * @param {string} where
   * @param {number} [cluster]
   */
  go(where, cluster) {
    if (location.hash !== `#${where}`) history.pushState(null, "", `#${where}`);
    this.route(cluster);
  }

  /** @param {number} [cluster] */
  route(cluster) {
    const [where, ...rest] = location.hash.slice(1).split("/");
    const [id] = rest;
    const before = this.view;
    if (where === "main" && before) return; // what the link at the top of the page leads to
    if (where === "cluster" && !this.talk.byId.has(Number(id))) {
      this.tell("That cluster is not there any more.");
      history.replaceState(null, "", "#clusters");
      this.route();
      return;
    }
    before?.leave?.();
    const view = VIEWS.find(({ name }) => name === where) ?? VIEWS[0];
    this.where = where === "cluster" ? VIEWS[0].name : view.name;
    this.view = where === "cluster" ? new ListView(this, "cluster", Number(id)) : view.open(this, rest);
    document.body.classList.toggle("is-list", this.view.body.classList.contains("list"));
    find("main").replaceChildren(this.view.body);
    window.scrollTo({ top: 0, behavior: "instant" });
    if (before) find("main").focus({ preventScroll: true });
    this.drawTop();
    this.view.enter?.(cluster ?? before?.cluster);
  }

  /** After every change of the state, whoever made it. */
  refresh() {
    if (!this.view) return;
    this.drawTop();
    this.view.refresh();
    this.lessons.follow();
  }

  /** Called when the lesson has changed. */
  learned() {
    this.drawTop();
    this.view?.learned?.();
  }

  /**
   * Shows the images that are most similar to some, from the whole set.
   * @param {number[]} rows
   */
  showLike(rows) {
    this.like = rows;
    this.go("like");
  }

  /** Undoes the last edit; a view may have its own order. */
  takeBack() {
    return this.view?.undo ? this.view.undo() : this.corrections.undo();
  }

  drawTop() {
    const { state } = this.talk;
    document.title = `${state.run.source} · twincluster`;
    find("source").textContent = `${state.run.source} · ${plural(state.run.inputs, this.talk.one)}`
      + (state.pictures.absent ? ` · without pictures: ${state.pictures.absent}` : "");
    this.links.forEach((link, at) => { // the links are reused, so that the focus stays
      const { name, text, hidden } = VIEWS[at];
      link.textContent = text(state, this);
      if (name === this.where) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      if (link.parentElement) link.parentElement.hidden = hidden?.(state, this) ?? false;
    });
    this.drawProposed();
    for (const [one, what] of /** @type {const} */ ([[this.undo, state.undo], [this.redo, state.redo]])) {
      one.setAttribute("aria-disabled", String(!what)); // a disabled button would lose the focus
      one.title = what ?? "";
    }
  }

  /** The line that links to the proposals, except on pages that show them. */
  drawProposed() {
    const { moves } = this.lessons;
    find("proposed").hidden = !moves || ["teach", "proposals"].includes(this.where);
    const text = `${wouldMove(moves, this.talk.one)} after your corrections.`;
    if (moves && find("moves").textContent !== text) find("moves").textContent = text;
  }

  /** @type {(id: number, wanted: boolean) => void} */
  choose(id, wanted) {
    if (wanted) this.chosen.add(id);
    else this.chosen.delete(id);
    this.view?.drawBar?.();
  }

  /**
   * Shows a message for a while, to screen readers too.
   * @param {string} text
   */
  tell(text) {
    const told = find("told");
    told.textContent = text;
    told.classList.add("shown");
    clearTimeout(this.telling);
    this.telling = setTimeout(() => told.classList.remove("shown"), 6000);
  }

  /**
   * Shows an error until it is called with "".
   * @param {string} text
   */
  warn(text) {
    if (find("trouble").textContent === text) return;
    find("trouble").textContent = text;
    find("trouble").hidden = !text;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const target = /** @type {HTMLInputElement} */ (event.target);
    const typing = target.matches("textarea, select, input:not([type=checkbox])");
    if (event.isComposing) return; // enter and escape belong to the input method
    if (event.defaultPrevented || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing && event.key !== "Escape" && event.key !== "Enter") return;
    if (typing) { // from the search field to its results, or clear it
      if (event.key === "Escape") target.value = "";
      target.dispatchEvent(new Event("input"));
      target.blur();
      this.view?.results?.focus({ preventScroll: true });
    } else if (event.key === "u") this.takeBack();
    else if (event.key === "U") this.corrections.redo();
    else if (event.key === "?") showKeys();
    else if (!this.view?.key(event)) return;
    event.preventDefault();
  }
}

function showKeys() {
  const list = make("dl", { class: "keys" }, KEYS.map(([key, text]) => [make("dt", { text: key }), make("dd", { text })]));
  const dialog = make("dialog", { class: "ask", "aria-labelledby": "asked" }, make("h2", { id: "asked", text: "Keys" }), list);
  dialog.append(button("Close", () => dialog.close(), { "data-first": true }));
  return showDialog(dialog);
}

window.explorer = new Explorer(); // for the console
window.explorer.start();
