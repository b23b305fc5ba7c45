// Puts the page together: the views, which the address names, the tools above them, and the keys.
import { make, find, count, plural, button } from "../parts/dom.js";
import { help } from "../parts/dialogs.js";
import { ClustersView } from "./clusters.js";
import { Corrections } from "./corrections.js";
import { Drops } from "./drop.js";
import { ListView } from "./lists.js";
import { MapView } from "./map.js";
import { Pictures } from "./pictures.js";
import { Talk } from "./talk.js";
import { ImageViewer } from "./viewer.js";

const VIEWS = ["clusters", "map", "all", "junk", "unreadable"];

class Explorer {
  constructor() {
    this.chosen = new Set(); // clusters
    this.talk = new Talk(() => this.refresh());
    this.pictures = new Pictures(this.talk);
    this.corrections = new Corrections(this);
    this.viewer = new ImageViewer(this);
    this.drops = new Drops(this);
  }

  async start() {
    try {
      await this.talk.load();
    } catch (error) {
      find("main").replaceChildren(make("p", { class: "warning", text: error.message }));
      return;
    }
    this.links = VIEWS.map((name) => make("a", { href: `#${name}` }));
    find("views").append(...this.links.map((link) => make("li", {}, link)));
    this.undo = button("Undo", () => this.corrections.undo(), { "aria-keyshortcuts": "u" });
    this.redo = button("Redo", () => this.corrections.redo(), { "aria-keyshortcuts": "Shift+U" });
    const lookUp = this.talk.one === "row" ? [] : [this.drops.button, this.drops.input];
    find("tools").append(this.undo, this.redo, ...lookUp, button("Keys", () => help(), { "aria-keyshortcuts": "?" }));
    const top = document.querySelector(".top"); // what sticks below it has to know how high it is
    new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${top.offsetHeight}px`)).observe(top);
    window.addEventListener("hashchange", () => {
      for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close(); // it is about what was here before
      this.route();
    });
    document.addEventListener("keydown", (event) => this.key(event));
    this.talk.watch((text) => this.tell(text), (text) => this.warn(text));
    this.route();
  }

  /** Another view; of the clusters, `cluster` is the one whose card gets the focus. */
  go(where, cluster) {
    if (location.hash !== `#${where}`) history.pushState(null, "", `#${where}`);
    this.route(cluster);
  }

  route(cluster) {
    const [where, id] = location.hash.slice(1).split("/");
    const before = this.view;
    if (where === "main" && before) return; // what the link at the top of the page leads to
    if (where === "cluster" && !this.talk.byId.has(Number(id))) {
      this.tell("That cluster is not there any more.");
      history.replaceState(null, "", "#clusters");
      this.route();
      return;
    }
    before?.leave?.();
    this.where = where === "cluster" || VIEWS.includes(where) ? where : "clusters";
    this.view = this.where === "clusters" ? (this.overview ??= new ClustersView(this))
      : this.where === "map" ? new MapView(this) : new ListView(this, this.where, Number(id ?? -1));
    document.body.classList.toggle("is-list", this.view instanceof ListView);
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
  }

  drawTop() {
    const { state } = this.talk;
    document.title = `${state.run.source} · twincluster`;
    find("source").textContent = `${state.run.source} · ${plural(state.run.inputs, this.talk.one)}`
      + (state.pictures.absent ? ` · without pictures: ${state.pictures.absent}` : "");
    const names = [`Clusters (${count(state.clusters.length)})`, "Map", `All ${state.run.kind}`, `Junk (${count(state.junk)})`, `Unreadable (${count(state.unreadable)})`];
    const here = this.where === "cluster" ? "clusters" : this.where;
    this.links.forEach((link, at) => { // the same ones for good, so that the focus stays
      link.textContent = names[at];
      if (VIEWS[at] === here) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    this.links.at(-1).parentElement.hidden = !state.unreadable;
    for (const [one, what] of [[this.undo, state.undo], [this.redo, state.redo]]) {
      one.setAttribute("aria-disabled", String(!what)); // one that is disabled would lose the focus
      one.title = what ?? "";
    }
  }

  choose(id, wanted) {
    if (wanted) this.chosen.add(id);
    else this.chosen.delete(id);
    this.view.drawBar?.();
  }

  /** Says something where everybody, screen readers too, can notice it. */
  tell(text) {
    const told = find("told");
    told.textContent = text;
    told.classList.add("shown");
    clearTimeout(this.telling);
    this.telling = setTimeout(() => told.classList.remove("shown"), 6000);
  }

  /** Says what is wrong for as long as it is; "" when nothing is. */
  warn(text) {
    if (find("trouble").textContent === text) return;
    find("trouble").textContent = text;
    find("trouble").hidden = !text;
  }

  key(event) {
    const { target } = event;
    const typing = target.matches("textarea, select, input:not([type=checkbox])");
    if (event.isComposing) return; // enter and escape are for the letters that are being put together
    if (event.defaultPrevented || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing && event.key !== "Escape" && event.key !== "Enter") return;
    if (typing) { // from a search to what it has found, or without it
      if (event.key === "Escape") target.value = "";
      target.dispatchEvent(new Event("input"));
      target.blur();
      this.view.results?.focus({ preventScroll: true });
    } else if (event.key === "u") this.corrections.undo();
    else if (event.key === "U") this.corrections.redo();
    else if (event.key === "?") help();
    else if (!this.view?.key(event)) return;
    event.preventDefault();
  }
}

window.explorer = new Explorer(); // for the console
window.explorer.start();
