// A grid of any number of images, of which only those in sight exist: their tiles come and go as one scrolls.
import { make, decimal } from "./dom.js";

const TILE = 116; // pixels a tile would like to have
const CALM = 70; // milliseconds a tile stays in sight before its picture is asked for

export class ImageGrid {
  /** `tell` has open(at), which shows an image, and changed(), for when the selection is another. */
  constructor(app, tell) {
    Object.assign(this, { app, tell, rows: [], selected: new Set(), active: -1, anchor: 0, tiles: new Map(), known: new Map(), columns: 1, cell: TILE });
    this.space = make("div", { class: "grid-space", role: "presentation" });
    this.body = make("div", {
      class: "grid", role: "listbox", tabindex: "0", "aria-multiselectable": "true",
      "aria-label": "Images. Arrow keys go through them, space selects, enter opens.",
    }, this.space);
    this.body.addEventListener("scroll", () => this.soon(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("focus", () => { if (this.active < 0 && this.rows.length) this.go(0, false); });
    this.space.addEventListener("click", (event) => this.click(event));
    this.space.addEventListener("dblclick", (event) => { if (this.at(event) >= 0) tell.open(this.at(event)); });
    new ResizeObserver(() => this.measure()).observe(this.body);
  }

  /** Other images; those that are still there stay selected, and the place stays. */
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
    if (!width) { // nothing is shown: what would be asked for may be gone
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

  /** Pictures and names of the tiles that are in sight now that scrolling has calmed down. */
  async fill() {
    const { app } = this;
    const empty = [...this.tiles.values()].filter((tile) => !tile.firstChild);
    for (const tile of empty) {
      const row = this.rows[tile.dataset.at];
      const picture = this.tell.plain ? null : app.pictures.element(row);
      if (picture) picture.loading = "eager";
      tile.append(picture || make("span", { class: "tile-name", text: String(row) }));
      if (picture) picture.addEventListener("error", () => tile.replaceChildren(make("span", { class: "tile-name", text: this.known.get(row) ?? row })));
    }
    const unknown = [...new Set(empty.map((tile) => this.rows[tile.dataset.at]))].slice(0, 500);
    if (!unknown.length) return;
    const found = await app.talk.ask(`/api/details?rows=${unknown.join(",")}`).catch(() => []);
    for (const { row, path, cluster, confidence, status } of found) {
      this.known.set(row, `${path}, ${cluster === -1 ? status : `${app.talk.nameOf(cluster)}, confidence ${decimal(confidence)}`}`);
    }
    for (const tile of empty) {
      const said = this.known.get(this.rows[tile.dataset.at]);
      if (!said) continue;
      tile.setAttribute("aria-label", said);
      tile.title = said;
      const name = tile.querySelector(".tile-name");
      if (name) name.textContent = said;
    }
  }

  at(event) {
    const tile = event.target.closest(".tile");
    return tile ? Number(tile.dataset.at) : -1;
  }

  click(event) {
    const at = this.at(event);
    if (at < 0) return;
    const row = this.rows[at];
    if (event.shiftKey) this.range(at, event.ctrlKey || event.metaKey);
    else if (event.ctrlKey || event.metaKey || event.pointerType === "touch") this.toggle(row);
    else this.selected = new Set([row]);
    if (!event.shiftKey) this.anchor = at;
    this.mark(at);
    this.body.focus({ preventScroll: true });
  }

  toggle(row) {
    if (!this.selected.delete(row)) this.selected.add(row);
  }

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

  /** Shows which image is the active one and which are selected. */
  mark(active) {
    this.active = active;
    for (const [at, tile] of this.tiles) {
      tile.setAttribute("aria-selected", String(this.selected.has(this.rows[at])));
      tile.classList.toggle("active", at === active);
    }
    if (active >= 0) this.body.setAttribute("aria-activedescendant", `tile-${active}`);
    else this.body.removeAttribute("aria-activedescendant");
    this.tell.changed();
  }

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

  key(event) {
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.cell)) * this.columns;
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
    else if (key === "Enter" && this.active >= 0) this.tell.open(this.active);
    else if (key === "Escape" && this.selected.size) this.selectNone();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
