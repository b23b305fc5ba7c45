// Puts the page together: the views, which the address names, the tools above them, and the keys.
"use strict";

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
    this.undo = button("Undo", () => this.corrections.undo(), { "aria-keyshortcuts": "u" });
    this.redo = button("Redo", () => this.corrections.redo(), { "aria-keyshortcuts": "Shift+U" });
    const rows = this.talk.state.run.kind === "rows";
    find("tools").append(this.undo, this.redo, ...(rows ? [] : [this.drops.button, this.drops.input]), button("Keys", () => help(), { "aria-keyshortcuts": "?" }));
    const top = document.querySelector(".top"); // what sticks below it has to know how high it is
    new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${top.offsetHeight}px`)).observe(top);
    window.addEventListener("hashchange", () => this.route());
    document.addEventListener("keydown", (event) => this.key(event));
    this.talk.watch((text) => this.tell(text), (text) => this.warn(text));
    this.route();
  }

  go(where) {
    if (location.hash === `#${where}`) this.route();
    else location.hash = where;
  }

  route() {
    const [where, id] = (location.hash.slice(1) || "clusters").split("/");
    if (where === "main") return;
    const views = {
      clusters: () => new ClustersView(this), all: () => new ListView(this, "all"), junk: () => new ListView(this, "junk"),
      unreadable: () => new ListView(this, "unreadable"), map: () => new MapView(this), cluster: () => new ListView(this, "cluster", Number(id)),
    };
    this.where = views[where] ? where : "clusters";
    if (this.where === "cluster" && !this.talk.byId.has(Number(id))) {
      this.tell("That cluster is not there any more.");
      this.where = "clusters";
    }
    this.view = views[this.where]();
    document.body.classList.toggle("is-list", this.view instanceof ListView);
    find("main").replaceChildren(this.view.body);
    window.scrollTo(0, 0);
    this.drawTop();
    this.view.enter?.();
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
    find("source").textContent = `${state.run.source} · ${plural(state.run.inputs, state.run.kind.slice(0, -1))}`
      + (state.pictures.absent ? ` · without pictures: ${state.pictures.absent}` : "");
    const kind = state.run.kind;
    const views = [["clusters", `Clusters (${count(state.clusters.length)})`], ["map", "Map"], ["all", `All ${kind}`], ["junk", `Junk (${count(state.junk)})`]];
    if (state.unreadable) views.push(["unreadable", `Unreadable (${count(state.unreadable)})`]);
    find("views").replaceChildren(...views.map(([name, text]) => make("li", {},
      make("a", { href: `#${name}`, text, "aria-current": this.where === name || (name === "clusters" && this.where === "cluster") ? "page" : null }))));
    for (const [one, what] of [[this.undo, state.undo], [this.redo, state.redo]]) {
      one.disabled = !what;
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
    if (event.defaultPrevented || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing && event.key !== "Escape") return;
    if (typing) target.blur();
    else if (event.key === "u") this.corrections.undo();
    else if (event.key === "U") this.corrections.redo();
    else if (event.key === "?") help();
    else if (!this.view?.key(event)) return;
    event.preventDefault();
  }
}

const explorer = new Explorer();
explorer.start();
