// Contact sheets: 24 images of one cluster. Click the wrong ones; one key confirms the rest.
import { messageOf } from "../parts/dialogs.js";
import { button, make, plural } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";
import { keep, kept } from "./memory.js";

/** @import { Explorer } from "./explorer.js" */

/** @typedef {{cluster: number | null, rows: number[], wrong: number[]}} Sheet */

const RECENT = 5; // latest clusters, which are not shown again at once

export class Sheets {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    /** @type {Sheet} */
    this.sheet = kept(app, "sheet", { cluster: null, rows: [], wrong: [] });
    /** @type {Promise<Sheet | null> | null} the next one, asked for before it is needed */
    this.next = null;
    /** @type {number[]} */
    this.recent = [];
    /** @type {{sheet: Sheet, edits: number}[]} what `u` takes back */
    this.past = [];
    this.foreign = app.talk.foreign;
    /** @type {number | null} number of the lesson that the next sheet is of */
    this.lesson = null;
    this.turn = 0; // number of the request: answers to older requests are ignored
    this.number = -1; // of the newest edit in the sheet; -1 before it has been shown
    this.heading = make("h3", { class: "sheet-title" });
    this.text = make("p", { class: "note", role: "status" });
    this.rest = button(null, () => this.confirm(), { class: "main", "aria-keyshortcuts": "c" }, );
    this.tiles = make("div", { class: "sheet", role: "group", "aria-label": "Images of the cluster" });
    /** @type {(key: string, text: string, act: () => unknown, shortcut: string) => HTMLElement} */
    const deed = (key, text, act, shortcut) => {
      const one = button(null, act, { "aria-keyshortcuts": shortcut });
      one.append(make("kbd", { text: key }), ` ${text}`);
      return one;
    };
    this.body = make("div", {}, this.heading, this.text, this.tiles,
      make("div", { class: "row deeds" }, this.rest, deed("space", "Another cluster", () => this.skip(), "Space"),
        deed("u", "Undo", () => this.undo(), "u")));
  }

  enter() {
    if (!this.sheet.rows.length || this.number !== this.app.talk.state.number) this.load();
    else this.draw();
  }

  /** After every change of the state, whoever made it. */
  refresh() {
    if (this.app.talk.foreign === this.foreign) return;
    this.foreign = this.app.talk.foreign;
    this.past = [];
    this.load();
  }

  learned() {
    const { number } = this.app.lessons.now;
    if (this.next && number !== this.lesson) this.fetchNext(); // prefetch a better one
    if (this.number < 0 || (!this.sheet.rows.length && !this.next)) this.load();
  }

  /**
   * Loads a sheet of a cluster, by default the least certain one; null if the server has none.
   * @param {number | null} cluster
   * @returns {Promise<Sheet | null>}
   */
  async ask(cluster = null) {
    const query = new URLSearchParams({ without: this.recent.join(",") });
    if (cluster !== null) query.set("cluster", String(cluster));
    const found = await this.app.talk.ask(`/api/sheet?${query}`);
    for (const row of found.rows) this.picture(row); // preload it
    return found.rows.length ? { cluster: found.cluster, rows: found.rows, wrong: [] } : null;
  }

  /** @param {number} row */
  picture(row) {
    const picture = this.app.pictures.element(row);
    if (picture) picture.loading = "eager";
    return picture ?? make("span", { class: "tile-name", text: String(row) });
  }

  /** Shows the current sheet again, without images placed meanwhile, or else the next. */
  async load() {
    if (this.app.lessons.now.stage !== "ready") return;
    const { cluster, rows, wrong } = this.sheet;
    const turn = ++this.turn;
    this.next = null;
    this.number = this.app.talk.state.number;
    try {
      if (rows.length) {
        const known = await this.app.talk.ask(`/api/details?rows=${rows.join(",")}`);
        if (turn !== this.turn) return;
        const open = new Set(known.filter((/** @type {any} */ one) => one.cluster === cluster && !one.example).map((/** @type {any} */ one) => one.row));
        this.sheet = { cluster, rows: rows.filter((row) => open.has(row)), wrong: wrong.filter((row) => open.has(row)) };
      }
      const sheet = this.sheet.rows.length ? this.sheet : await this.ask();
      if (turn === this.turn) this.show(sheet);
    } catch (error) {
      this.text.textContent = messageOf(error);
    }
  }

  /** @param {Sheet | null} sheet */
  show(sheet) {
    this.turn += 1;
    this.sheet = sheet ?? { cluster: null, rows: [], wrong: [] };
    const { cluster } = this.sheet;
    if (cluster !== null) this.recent = [...this.recent.filter((one) => one !== cluster), cluster].slice(-RECENT);
    this.draw();
    if (sheet && !this.next) this.fetchNext();
  }

  fetchNext() {
    this.lesson = this.app.lessons.now.number;
    this.next = this.ask().catch(() => null);
  }

  draw() {
    const { app, sheet } = this;
    const { cluster, rows } = sheet;
    keep(app, "sheet", sheet);
    this.heading.replaceChildren(...(cluster === null ? [] : [swatch(cluster), make("span", { text: app.talk.nameOf(cluster) })]));
    this.rest.hidden = !rows.length;
    this.tiles.replaceChildren(...rows.map((row) => {
      const tile = button(null, () => this.toggle(row), { class: "sheet-tile", "data-row": row, "aria-label": `${app.talk.one} ${row}: does not belong` });
      tile.append(this.picture(row));
      return tile;
    }));
    this.mark();
  }

  mark() {
    const { rows, wrong } = this.sheet;
    const right = rows.length - wrong.length;
    for (const tile of this.tiles.querySelectorAll("button")) tile.setAttribute("aria-pressed", String(wrong.includes(Number(tile.dataset.row))));
    this.text.textContent = rows.length ? `${plural(rows.length, this.app.talk.one)} of this cluster. Click what does not belong, then confirm the rest (C).`
      : "No image is left: all are examples.";
    this.rest.replaceChildren(make("kbd", { text: "c" }), ` ${!right ? "None belongs" : wrong.length ? `The other ${right} are right` : `All ${right} are right`}`);
  }

  /** @param {number} row */
  toggle(row) {
    const { wrong } = this.sheet;
    this.sheet.wrong = wrong.includes(row) ? wrong.filter((one) => one !== row) : [...wrong, row];
    keep(this.app, "sheet", this.sheet);
    this.mark();
  }

  /** Refuses the clicked images, confirms the rest, and shows the next sheet at once. */
  confirm() {
    const { sheet } = this;
    const { cluster, rows, wrong } = sheet;
    if (cluster === null || !rows.length) return;
    const right = rows.filter((row) => !wrong.includes(row));
    /** @type {[kind: string, fields: Record<string, unknown>][]} */
    const edits = [...(wrong.length ? [/** @type {[string, {}]} */ (["refuse", { rows: wrong, to: [cluster] }])] : []),
      ...(right.length ? [/** @type {[string, {}]} */ (["confirm", { rows: right }])] : [])];
    const step = { sheet, edits: edits.length, back: false };
    this.past.push(step);
    this.follow();
    for (const [kind, fields] of edits) {
      this.app.talk.edit(kind, fields).then(() => { this.number = this.app.talk.state.number; }).catch((error) => {
        if (!step.back) this.show(sheet); // it was rejected: show it again
        step.back = true;
        this.past = this.past.filter((one) => one !== step);
        this.app.tell(messageOf(error));
      });
    }
  }

  async follow() {
    const { next } = this;
    const turn = ++this.turn;
    this.next = null;
    this.sheet = { cluster: null, rows: [], wrong: [] };
    try {
      const sheet = await (next ?? this.ask());
      if (turn === this.turn) this.show(sheet);
    } catch (error) {
      this.text.textContent = messageOf(error);
    }
  }

  skip() {
    this.past.push({ sheet: this.sheet, edits: 0 });
    this.follow();
  }

  /** Undoes the last step on this page, or else the newest edit of the run. */
  async undo() {
    const step = this.past.pop();
    if (!step) {
      await this.app.corrections.undo();
      return;
    }
    this.next = null;
    this.show(step.sheet);
    for (let left = step.edits; left; left--) await this.app.corrections.undo();
    this.number = this.app.talk.state.number;
  }

  /** @param {KeyboardEvent} event */
  key({ key, target }) {
    const { tagName } = /** @type {Element} */ (target);
    if (key === "c") this.confirm();
    else if (key === " " && !["BUTTON", "A"].includes(tagName)) this.skip();
    else if (key.startsWith("Arrow")) return this.step(key);
    else return false;
    return true;
  }

  /** @param {string} key */
  step(key) {
    const tiles = [...this.tiles.querySelectorAll("button")];
    const at = tiles.findIndex((tile) => tile === document.activeElement);
    const columns = Math.max(1, tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length);
    /** @type {Record<string, number>} */
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const next = tiles[at < 0 ? 0 : at + steps[key]];
    next?.focus();
    return Boolean(next);
  }
}
