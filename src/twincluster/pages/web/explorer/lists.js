// The images of one cluster, of all clusters, or of the junk: a grid, and the actions on selected images.
import { messageOf } from "../parts/dialogs.js";
import { button, choices, count, decimal, make, note, plural, press } from "../parts/dom.js";
import { ImageGrid } from "../parts/grid.js";
import { swatch } from "../parts/palette.js";

/** @import { Row } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

/**
 * Where the images of a grid come from, and the functions that its page provides.
 * @typedef {object} Place
 * @property {"cluster" | "all" | "junk" | "unreadable" | "group" | "like"} of
 * @property {number} [cluster]
 * @property {((rows: number[]) => unknown) | null} [like]  shows what is most like some images
 * @property {{key: string, text: string, act: (rows: number[]) => unknown}[]} [extra]  more to do with them
 * @property {boolean} [toggles]  a click selects or leaves out, without ctrl
 * @property {() => number[]} [taken]  what is acted on, where it is more than the selected images
 */

/** @type {[name: string, text: string][]} */
const ORDER_NAMES = [["typical", "Typical first"], ["doubtful", "Doubtful first"], ["source", "As in the source"]];
const CLUSTER_KEYS = ["m", "s"]; // act on the cluster if no image is selected

/** A grid of images, with its bar. */
export class SelectionGrid {
  /**
   * @param {Explorer} app
   * @param {Place} place
   */
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.grid = new ImageGrid({
      open: (at) => app.viewer.open(this.grid.rows, at),
      changed: () => this.draw(),
      picture: (row) => (place.of === "unreadable" ? null : app.pictures.element(row)),
      describe: (rows) => this.describe(rows),
      toggles: place.toggles,
    });
    this.text = make("span", { role: "status", class: "figure" });
    /** The cluster of all images, if it is the same. */
    this.from = ["cluster", "group"].includes(place.of) && (place.cluster ?? -1) >= 0 ? place.cluster ?? null : null;
    const junk = place.of === "junk" || (place.of === "group" && this.from === null);
    this.actions = place.of === "unreadable" ? [] : [
      ...(place.extra ?? []), ...(place.like ? [{ key: "l", text: "More like these", act: place.like }] : []), ...app.corrections.ofImages(this.from, junk)];
    this.open = button("Open", () => app.viewer.open(this.grid.rows, Math.max(0, this.grid.active)), { class: "needs" });
    this.bar = make("div", { class: "row chosen", role: "group", "aria-label": "Selected images" }, this.text,
      place.of === "unreadable" ? [] : [
        button("Select all", () => this.grid.selectAll()), button("None", () => this.grid.selectNone(), { class: "needs" }), this.open,
        this.actions.map(({ key, text, act }) => button(text, () => act(this.acted), { class: "needs", "aria-keyshortcuts": key }))]);
    this.draw();
  }

  get rows() {
    return [...this.grid.selected];
  }

  /** The images that the actions apply to. */
  get acted() {
    return this.place.taken?.() ?? this.rows;
  }

  draw() {
    const { grid, place, app } = this;
    const many = grid.selected.size;
    this.text.textContent = many ? `${count(many)} of ${count(grid.rows.length)} selected`
      : plural(grid.rows.length, place.of === "unreadable" ? "file" : app.talk.one);
    for (const one of this.bar.querySelectorAll("button")) if (one.classList.contains("needs")) one.disabled = !many;
    this.open.disabled = grid.active < 0;
  }

  /**
   * Returns true for a key that acts on the selection, or reports that nothing is selected.
   * @param {KeyboardEvent} event
   */
  key({ key }) {
    const rows = this.acted;
    const action = this.actions.find((one) => one.key === key);
    if (!action || (!rows.length && this.from !== null && CLUSTER_KEYS.includes(key))) return false;
    if (rows.length) action.act(rows);
    else this.app.tell(`Select ${this.app.talk.state.run.kind} first: click them, or press space.`);
    return true;
  }

  /**
   * @param {number[]} rows
   * @returns {Promise<[row: number, text: string][]>}
   */
  async describe(rows) {
    const { talk } = this.app;
    /** @type {Row[]} */
    const found = await talk.ask(`/api/details?rows=${rows.join(",")}`);
    return found.map(({ row, path, cluster, confidence, status, example }) =>
      [row, `${path}, ${cluster === -1 ? status : `${talk.nameOf(cluster)}, ${example ? "placed by you" : `confidence ${decimal(confidence)}`}`}`]);
  }
}

export class ListView {
  /**
   * @param {Explorer} app
   * @param {"cluster" | "all" | "junk" | "unreadable"} of
   */
  constructor(app, of, cluster = -1) {
    this.app = app;
    this.of = of;
    this.cluster = cluster;
    this.usual = of === "all" ? "source" : "typical";
    this.order = this.usual;
    this.path = "";
    this.asked = 0;
    this.typing = 0;
    this.list = new SelectionGrid(app, { of, cluster, like: of === "unreadable" ? null : (rows) => app.showLike(rows) });
    this.grid = this.list.grid;
    this.heading = make("h2", { id: "title", class: "title" });
    this.empty = note("");
    this.search = make("input", { type: "search", placeholder: "Find by path", "aria-label": "Show only images whose path has this in it" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => { this.path = this.search.value.trim(); this.refresh(); }, 200);
    });
    this.orders = choices("Order", ORDER_NAMES, this.usual, (name) => this.arrange(name));
    this.body = make("section", { class: "list", "aria-labelledby": "title" }, make("div", { class: "row list-top" }, this.heading, this.deeds()),
      make("div", { class: "row tools" }, this.search, of === "unreadable" ? null : this.orders), this.list.bar, this.empty, this.grid.body);
    this.arrange(this.usual);
  }

  /** Buttons for the whole cluster. */
  deeds() {
    if (this.of !== "cluster") return null;
    const { corrections } = this.app;
    /** @type {(text: string, key: string, act: () => unknown) => HTMLButtonElement} */
    const deed = (text, key, act) => button(text, act, { "aria-keyshortcuts": key });
    return make("div", { class: "row" }, deed("Rename", "r", () => corrections.rename(this.cluster)),
      deed("Merge…", "m", () => corrections.merge([this.cluster])), deed("Split…", "s", () => corrections.split(this.cluster)));
  }

  /** @param {string} order */
  arrange(order) {
    this.order = order;
    press(this.orders, order);
    return this.refresh();
  }

  /** Returns whether the server answered. */
  async refresh() {
    const { talk } = this.app;
    if (this.of === "cluster" && !talk.byId.has(this.cluster)) { // it was merged or split
      this.app.go("clusters");
      return false;
    }
    const titles = { all: `All ${talk.state.run.kind}`, junk: "Junk", unreadable: "Unreadable files", cluster: talk.nameOf(this.cluster) };
    this.heading.replaceChildren(...(this.of === "cluster" ? [swatch(this.cluster)] : []), titles[this.of]);
    const turn = ++this.asked;
    const query = new URLSearchParams({ of: this.of, cluster: String(this.cluster), order: this.order, path: this.path });
    try {
      const { rows } = await talk.ask(`/api/rows?${query}`);
      if (turn !== this.asked) return true;
      this.empty.textContent = rows.length ? "" : this.path ? "No path here has this in it." : "Nothing is here.";
      this.empty.hidden = Boolean(rows.length);
      this.grid.show(rows);
      this.list.draw();
      if (document.activeElement === document.body) this.enter(); // it was empty and has images again
    } catch (error) {
      this.app.tell(messageOf(error));
      return false;
    }
    return true;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { corrections } = this.app;
    if (this.list.key(event)) return true;
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

  /** Moves the focus to the grid. */
  enter() {
    this.results.focus({ preventScroll: true });
  }
}
