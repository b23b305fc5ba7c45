// A grid of any number of images. Only the tiles in sight exist: they come and go as one scrolls.
import { make } from "./dom.js";

const TILE = 116; // desired width of a tile in pixels
const CALM = 70; // milliseconds a tile must be visible before its picture is requested
const AT_ONCE = 500; // images described by one call

/**
 * Functions that a page provides for its grid.
 * @typedef {object} GridUses
 * @property {(at: number) => unknown} open  shows the image at a place
 * @property {() => unknown} changed  after every change of the selection or of the images
 * @property {(row: number) => HTMLImageElement | null} picture
 * @property {(rows: number[]) => Promise<[row: number, text: string][]>} describe
 * @property {boolean} [toggles]  a click selects or leaves out, as with ctrl
 */

export class ImageGrid {
  /** @param {GridUses} uses */
  constructor(uses) {
    this.uses = uses;
    /** @type {number[]} */
    this.rows = [];
    /** @type {Set<number>} */
    this.selected = new Set();
    this.active = -1; // position of the image with the keyboard focus
    this.anchor = 0; // start of a range selection
    /** @type {Map<number, HTMLElement>} by their places */
    this.tiles = new Map();
    /** @type {Map<number, string>} what is known of rows */
    this.known = new Map();
    this.columns = 1;
    this.cell = TILE;
    this.waiting = false;
    this.calm = 0;
    this.space = make("div", { class: "grid-space", role: "presentation" });
    this.body = make("div", {
      class: "grid", role: "listbox", tabindex: "0", "aria-multiselectable": "true",
      "aria-label": "Images. Arrow keys go through them, space selects, enter opens.",
    }, this.space);
    this.body.addEventListener("scroll", () => this.soon(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("focus", () => { if (this.active < 0 && this.rows.length) this.go(0, false); });
    this.space.addEventListener("click", (event) => this.click(event));
    this.space.addEventListener("dblclick", (event) => { if (this.at(event) >= 0) uses.open(this.at(event)); });
    new ResizeObserver(() => this.measure()).observe(this.body);
  }

  /**
   * Shows other images; selection and position stay if their images remain.
   * @param {number[]} rows
   */
  show(rows) {
    const focus = this.rows[this.active];
    const there = new Set(rows);
    this.rows = rows;
    this.selected = new Set([...this.selected].filter((row) => there.has(row)));
    this.known.clear();
    this.active = focus === undefined || !rows.length ? -1 : there.has(focus) ? rows.indexOf(focus) : Math.min(this.active, rows.length - 1);
    if (this.active < 0 && rows.length && document.activeElement === this.body) this.active = 0;
    this.anchor = Math.max(0, this.active);
    this.body.hidden = !rows.length;
    this.measure();
    this.mark(this.active);
  }

  clear() {
    this.space.replaceChildren();
    this.tiles.clear();
  }

  measure() {
    const width = this.body.clientWidth;
    if (!width) { // the grid is hidden, and its images may be gone
      this.clear();
      return;
    }
    this.columns = Math.max(3, Math.floor(width / TILE));
    const first = Math.floor(this.body.scrollTop / this.cell);
    this.cell = width / this.columns;
    this.space.style.height = `${Math.ceil(this.rows.length / this.columns) * this.cell}px`;
    if (first && this.tiles.size) this.body.scrollTop = first * this.cell;
    this.clear();
    this.paint();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const [top, high] = [this.body.scrollTop, this.body.clientHeight];
    const first = Math.max(0, Math.floor(top / this.cell) - 1) * this.columns;
    const last = Math.min(this.rows.length, (Math.ceil((top + high) / this.cell) + 1) * this.columns);
    for (const [at, tile] of this.tiles) {
      if (at >= first && at < last) continue;
      tile.remove();
      this.tiles.delete(at);
    }
    const fresh = [];
    for (let at = first; at < last; at++) if (!this.tiles.has(at)) fresh.push(this.tile(at));
    this.space.append(...fresh);
    if (!fresh.length) return;
    clearTimeout(this.calm);
    this.calm = setTimeout(() => this.fill(), CALM);
  }

  /** @param {number} at */
  tile(at) {
    const row = this.rows[at];
    const tile = make("div", {
      class: "tile", role: "option", id: `tile-${at}`, "data-at": at, "aria-selected": String(this.selected.has(row)),
      "aria-setsize": this.rows.length, "aria-posinset": at + 1, "aria-label": this.known.get(row) ?? `Image ${row}`,
    });
    if (at === this.active) tile.classList.add("active");
    tile.style.width = tile.style.height = `${this.cell}px`;
    tile.style.transform = `translate(${(at % this.columns) * this.cell}px, ${Math.floor(at / this.columns) * this.cell}px)`;
    this.tiles.set(at, tile);
    return tile;
  }

  /** Loads pictures and names of the visible tiles after scrolling has stopped. */
  async fill() {
    const empty = [...this.tiles].filter(([, tile]) => !tile.firstChild).map(([at, tile]) => ({ row: this.rows[at], tile }));
    for (const { row, tile } of empty) {
      const picture = this.uses.picture(row);
      tile.append(picture ?? make("span", { class: "tile-name", text: String(row) }));
      if (!picture) continue;
      picture.loading = "eager";
      picture.addEventListener("error", () => tile.replaceChildren(make("span", { class: "tile-name", text: this.known.get(row) ?? String(row) })));
    }
    const unknown = [...new Set(empty.map(({ row }) => row))].slice(0, AT_ONCE);
    if (!unknown.length) return;
    for (const [row, text] of await this.uses.describe(unknown).catch(() => [])) this.known.set(row, text);
    for (const { row, tile } of empty) {
      const text = this.known.get(row);
      if (!text) continue;
      tile.setAttribute("aria-label", text);
      tile.title = text;
      const name = tile.querySelector(".tile-name");
      if (name) name.textContent = text;
    }
  }

  /** @param {Event} event */
  at(event) {
    const tile = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(".tile"));
    return tile ? Number(tile.dataset.at) : -1;
  }

  /** @param {MouseEvent} event */
  click(event) {
    const at = this.at(event);
    if (at < 0) return;
    const row = this.rows[at];
    if (event.shiftKey) this.range(at, event.ctrlKey || event.metaKey);
    else if (this.uses.toggles || event.ctrlKey || event.metaKey || /** @type {PointerEvent} */ (event).pointerType === "touch") this.toggle(row);
    else this.selected = new Set([row]);
    if (!event.shiftKey) this.anchor = at;
    this.mark(at);
    this.body.focus({ preventScroll: true });
  }

  /** @param {number} row */
  toggle(row) {
    if (!this.selected.delete(row)) this.selected.add(row);
  }

  /** @type {(at: number, more: boolean) => void} */
  range(at, more) {
    const [low, high] = [Math.min(at, this.anchor), Math.max(at, this.anchor)];
    const part = this.rows.slice(low, high + 1);
    this.selected = new Set(more ? [...this.selected, ...part] : part);
  }

  selectAll() {
    this.selected = new Set(this.rows);
    this.mark(this.active);
  }

  selectNone() {
    this.selected = new Set();
    this.mark(this.active);
  }

  /**
   * Shows which image is the active one and which are selected.
   * @param {number} active
   */
  mark(active) {
    this.active = active;
    for (const [at, tile] of this.tiles) {
      tile.setAttribute("aria-selected", String(this.selected.has(this.rows[at])));
      tile.classList.toggle("active", at === active);
    }
    if (active >= 0) this.body.setAttribute("aria-activedescendant", `tile-${active}`);
    else this.body.removeAttribute("aria-activedescendant");
    this.uses.changed();
  }

  /** @type {(at: number, extend: boolean) => void} */
  go(at, extend) {
    const next = Math.max(0, Math.min(this.rows.length - 1, at));
    const top = Math.floor(next / this.columns) * this.cell;
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + this.cell > this.body.scrollTop + this.body.clientHeight) this.body.scrollTop = top + this.cell - this.body.clientHeight;
    this.paint();
    if (extend) this.range(next, false);
    else this.anchor = next;
    this.mark(next);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.cell)) * this.columns;
    /** @type {Record<string, number>} */
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page };
    const { key } = event;
    if (event.altKey || ((event.ctrlKey || event.metaKey) && key !== "a")) return;
    if (steps[key]) this.go((this.active < 0 ? 0 : this.active) + steps[key], event.shiftKey);
    else if (key === "Home") this.go(0, event.shiftKey);
    else if (key === "End") this.go(this.rows.length - 1, event.shiftKey);
    else if (key === " " && this.active >= 0) {
      this.toggle(this.rows[this.active]);
      this.mark(this.active);
    } else if (key === "a" && (event.ctrlKey || event.metaKey)) this.selectAll();
    else if (key === "Enter" && this.active >= 0) this.uses.open(this.active);
    else if (key === "Escape" && this.selected.size) this.selectNone();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
