// The images of one cluster, of all clusters, of the junk: a grid, what is selected in it, and what can be done with that.
import { make, count, plural, note, button, choices, press } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";
import { ImageGrid } from "../parts/grid.js";

const ORDER_NAMES = [["typical", "Typical first"], ["doubtful", "Doubtful first"], ["source", "As in the source"], ["alike", "Most alike first"]];
const MOST_LIKE = 500; // images that others are compared with

export class SelectionBar {
  /** `place` says where the images are: {of, cluster}. */
  constructor(app, grid, place) {
    Object.assign(this, { app, grid, place });
    this.said = make("span", { role: "status", class: "figure" });
    const { corrections } = app;
    const act = (text, key, does) => button(text, () => does(this.rows), { class: "needs", "aria-keyshortcuts": key });
    this.open = button("Open", () => app.viewer.open(grid.rows, Math.max(0, this.place.first?.() ?? grid.active)), { class: "needs" });
    const junk = place.of === "junk" ? act("Not junk", "j", (rows) => corrections.unjunk(rows)) : act("Junk", "j", (rows) => corrections.junk(rows));
    this.body = make("div", { class: "row chosen", role: "group", "aria-label": "Selected images" }, this.said,
      ...(place.of === "unreadable" ? [] : [
        button("Select all", () => grid.selectAll()), button("None", () => grid.selectNone(), { class: "needs" }), this.open,
        place.like ? act("More like these", "l", (rows) => place.like(rows)) : null,
        act("Move…", "m", (rows) => corrections.move(rows, this.from)), act("New cluster…", "n", (rows) => corrections.moveToNew(rows)),
        place.of === "cluster" ? act("Split off…", "s", (rows) => corrections.splitOff(place.cluster, rows)) : null, junk]));
    this.draw();
  }

  get rows() {
    return [...this.grid.selected];
  }

  /** The one cluster that the images are in. */
  get from() {
    return this.place.of === "cluster" ? this.place.cluster : null;
  }

  draw() {
    const many = this.grid.selected.size;
    this.said.textContent = many ? `${count(many)} of ${count(this.grid.rows.length)} selected` : plural(this.grid.rows.length, this.place.of === "unreadable" ? "file" : this.app.talk.one);
    for (const one of this.body.querySelectorAll(".needs")) one.disabled = !many;
    this.open.disabled = this.grid.active < 0;
  }

  /** Keys that act on the selection; false for others. */
  key(event) {
    const { corrections } = this.app;
    const { rows, place } = this;
    if (place.of === "unreadable") return false;
    if (!rows.length) return this.wants(event.key);
    if (event.key === "m") corrections.move(rows, this.from);
    else if (event.key === "l" && place.like) place.like(rows);
    else if (event.key === "n") corrections.moveToNew(rows);
    else if (event.key === "s" && place.of === "cluster") corrections.splitOff(place.cluster, rows);
    else if (event.key === "j") place.of === "junk" ? corrections.unjunk(rows) : corrections.junk(rows);
    else return false;
    return true;
  }

  /** Says what is missing where nothing is selected; in a cluster, some keys are about the cluster then. */
  wants(key) {
    const keys = `nj${this.from === null ? "m" : ""}${this.place.like ? "l" : ""}`;
    if (!keys.includes(key)) return false;
    this.app.tell(`Select ${this.app.talk.state.run.kind} first: click them, or press space.`);
    return true;
  }
}

export class ListView {
  constructor(app, of, cluster = -1) {
    Object.assign(this, { app, of, cluster, usual: of === "all" ? "source" : "typical", path: "", like: [], asked: 0 });
    this.grid = new ImageGrid(app, { open: (at) => app.viewer.open(this.grid.rows, at), changed: () => this.bar?.draw(), plain: of === "unreadable" });
    this.bar = new SelectionBar(app, this.grid, { of, cluster, like: of === "unreadable" ? null : (rows) => this.showLike(rows) });
    this.heading = make("h2", { id: "title", class: "title" });
    this.empty = note("");
    this.search = make("input", { type: "search", placeholder: "Find by path", "aria-label": "Show only images whose path has this in it" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => { this.path = this.search.value.trim(); this.refresh(); }, 200);
    });
    this.orders = choices("Order", ORDER_NAMES, this.usual, (name) => this.arrange(name));
    this.body = make("section", { class: "list", "aria-labelledby": "title" }, make("div", { class: "row list-top" }, this.heading, this.deeds()),
      make("div", { class: "row tools" }, this.search, of === "unreadable" ? null : this.orders), this.bar.body, this.empty, this.grid.body);
    this.arrange(this.usual);
  }

  deeds() {
    if (this.of !== "cluster") return null;
    const { corrections } = this.app;
    const deed = (text, key, does) => button(text, does, { "aria-keyshortcuts": key });
    return make("div", { class: "row" }, deed("Rename", "r", () => corrections.rename(this.cluster)),
      deed("Merge…", "m", () => corrections.merge([this.cluster])), deed("Split…", "s", () => corrections.split(this.cluster)));
  }

  arrange(order) {
    this.order = order;
    press(this.orders, order);
    this.orders.lastChild.hidden = order !== "alike"; // which begins with a selection
    return this.refresh();
  }

  /** What is selected comes first, then what is most like it: a click with shift selects up to where that ends. */
  async showLike(rows) {
    this.like = rows.slice(0, MOST_LIKE);
    if (await this.arrange("alike")) this.grid.go(0, false);
  }

  /** Whether the images could be had. */
  async refresh() {
    const { talk } = this.app;
    if (this.of === "cluster" && !talk.byId.has(this.cluster)) return this.app.go("clusters"); // it was merged or split
    const titles = { all: `All ${talk.state.run.kind}`, junk: "Junk", unreadable: "Unreadable files" };
    this.heading.replaceChildren(...(this.of === "cluster" ? [swatch(this.cluster)] : []), titles[this.of] ?? talk.nameOf(this.cluster));
    const turn = ++this.asked;
    const query = new URLSearchParams({ of: this.of, cluster: this.cluster, order: this.order, path: this.path, ...(this.order === "alike" ? { like: this.like } : {}) });
    try {
      const { rows } = await talk.ask(`/api/rows?${query}`);
      if (turn !== this.asked) return true;
      this.empty.textContent = rows.length ? "" : this.path ? "No path here has this in it." : "Nothing is here.";
      this.empty.hidden = Boolean(rows.length);
      this.grid.show(rows);
      this.bar.draw();
      if (document.activeElement === document.body) this.enter(); // it was empty, and has something again
    } catch (error) {
      this.app.tell(error.message);
      if (this.order === "alike") this.arrange(this.usual);
      return false;
    }
    return true;
  }

  key(event) {
    const { corrections } = this.app;
    if (this.bar.key(event)) return true;
    if (event.key === "/") this.search.focus();
    else if (event.key === "Escape" && !this.grid.selected.size) this.app.go("clusters");
    else if (this.of !== "cluster") return false;
    else if (event.key === "r") corrections.rename(this.cluster);
    else if (event.key === "m") corrections.merge([this.cluster]);
    else if (event.key === "s") corrections.split(this.cluster);
    else return false;
    return true;
  }

  get results() {
    return this.grid.body;
  }

  /** The keyboard starts in the grid. */
  enter() {
    this.results.focus({ preventScroll: true });
  }
}
