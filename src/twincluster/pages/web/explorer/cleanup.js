// Images that may not belong, by kind: copies beside the best image of their group, others by their figure. What is ticked
// becomes junk in one edit.
import { messageOf } from "../parts/dialogs.js";
import { button, choices, count, make, note, plural, press } from "../parts/dom.js";
import { gallery } from "../parts/gallery.js";
import { KINDS, threshold } from "../parts/suspects.js";
import { keep, kept } from "./memory.js";

/** @import { Explorer } from "./explorer.js" */

/**
 * Copies of the image `best`, or with -1 an image alone.
 * @typedef {{best: number, rows: number[], values: number[]}} SuspectGroup
 * @typedef {{kind: string, rising: boolean, groups: SuspectGroup[]}} SuspectKind
 */

const PAGE_OF_GROUPS = 60; // groups drawn at once
const COPIES_SHOWN = 8; // copies shown in a group
const ASK_AGAIN = 2000; // milliseconds until it is asked again whether all images have been looked at

export class CleanUpView {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    /** @type {SuspectKind[]} */
    this.kinds = [];
    this.kind = kept(app, "cleanup", { kind: "" }).kind;
    this.asked = 0;
    this.room = PAGE_OF_GROUPS;
    /** @type {Set<number>} images that are left out */
    this.spared = new Set();
    /** @type {(value: number) => boolean} */
    this.passes = () => true;
    this.waiting = 0;
    this.text = make("p", { class: "note", role: "status" });
    this.tabs = make("div", { class: "row" });
    this.tools = make("div", { class: "row tools" });
    this.act = button("", () => this.junk(), { class: "main" });
    this.rows = make("tbody");
    this.more = button("Show more", () => { this.room += PAGE_OF_GROUPS; this.draw(); });
    this.body = make("section", { class: "cleanup", "aria-labelledby": "title" },
      make("h2", { id: "title", class: "title", text: "Clean up" }), this.tabs, this.text, this.tools,
      make("table", { class: "suspects" }, this.rows), this.more);
    this.refresh();
  }

  async refresh() {
    const turn = ++this.asked;
    try {
      const { absent, kinds } = await this.app.talk.ask("/api/suspects");
      if (turn !== this.asked) return;
      this.kinds = kinds;
      this.show(absent);
      clearTimeout(this.waiting);
      if (absent.includes("still")) this.waiting = setTimeout(() => this.refresh(), ASK_AGAIN);
    } catch (error) {
      this.app.tell(messageOf(error));
    }
  }

  leave() {
    clearTimeout(this.waiting);
  }

  /** @param {string} absent */
  show(absent) {
    const { kinds } = this;
    const known = kinds.find(({ kind }) => kind === this.kind) ?? kinds[0];
    const isNew = known?.kind !== this.kind || !this.tabs.children.length;
    this.kind = known?.kind ?? "";
    /** @type {[string, string][]} */
    const names = kinds.map(({ kind, groups }) => [kind, `${KINDS[kind].title} (${count(imagesIn(groups))})`]);
    const tabs = choices("Kind", names, this.kind, (kind) => { this.kind = kind; press(tabs, kind); this.show(""); });
    this.tabs.replaceChildren(...(names.length ? [tabs] : []));
    if (isNew) this.room = PAGE_OF_GROUPS;
    keep(this.app, "cleanup", { kind: this.kind });
    if (!known) {
      this.text.textContent = absent ? `${absent[0].toUpperCase()}${absent.slice(1)}.` : "Nothing stands out: no copies, and no image that looks out of place.";
      this.tools.replaceChildren();
      this.rows.replaceChildren();
      this.more.hidden = true;
      return;
    }
    const { title, why } = KINDS[known.kind];
    this.text.textContent = `${why} Untick what should stay.`;
    const slider = threshold(`Threshold for ${title.toLowerCase()}`, known.groups.flatMap(({ values }) => values), known.rising, (passes) => {
      this.passes = passes;
      this.draw();
    });
    this.tools.replaceChildren(...(slider ? [slider] : []), this.act);
    this.draw();
  }

  get current() {
    return this.kinds.find(({ kind }) => kind === this.kind);
  }

  /** The groups with what passes the threshold. */
  get groups() {
    const groups = this.current?.groups ?? [];
    return groups.map(({ best, rows, values }) => ({ best, rows: rows.filter((_, at) => this.passes(values[at])), values: values.filter(this.passes) }))
      .filter(({ rows }) => rows.length);
  }

  /** Images that will be junk. */
  get chosen() {
    return this.groups.flatMap(({ rows }) => rows).filter((row) => !this.spared.has(row));
  }

  draw() {
    const { groups } = this;
    this.rows.replaceChildren(...groups.slice(0, this.room).map((group) => this.groupRow(group)));
    this.more.hidden = groups.length <= this.room;
    this.drawButton();
  }

  drawButton() {
    const { chosen } = this;
    const copies = (this.current?.groups[0]?.best ?? -1) >= 0;
    this.act.textContent = copies ? `Keep the largest, junk the rest (${count(chosen.length)})` : `Junk all ${count(chosen.length)}`;
    this.act.disabled = !chosen.length;
  }

  /** @param {SuspectGroup} group */
  groupRow({ best, rows, values }) {
    const { app } = this;
    const list = best >= 0 ? [best, ...rows] : rows;
    /** @type {(row: number, label: string) => ReturnType<typeof app.pictures.thumb>} */
    const thumb = (row, label) => app.pictures.thumb(row, `${label}: open image ${row}`, () => app.viewer.open(list, list.indexOf(row)));
    const tick = make("input", { type: "checkbox", checked: rows.some((row) => !this.spared.has(row)),
      "aria-label": best >= 0 ? `Junk ${plural(rows.length, "copy", "copies")} of image ${best}` : `Junk image ${rows[0]}` });
    tick.addEventListener("change", () => {
      for (const row of rows) this.spared[tick.checked ? "delete" : "add"](row);
      this.drawButton();
    });
    const { value } = KINDS[this.kind];
    return make("tr", {}, make("td", { class: "tick" }, tick),
      best >= 0 ? make("td", {}, gallery([thumb(best, "The largest")], "one")) : null,
      make("td", {}, gallery(rows.slice(0, COPIES_SHOWN).map((row) => thumb(row, best >= 0 ? "Copy" : KINDS[this.kind].title)), best >= 0 ? "many" : "one"),
        rows.length > COPIES_SHOWN ? note(`and ${count(rows.length - COPIES_SHOWN)} more`) : null),
      make("td", { class: "figure", text: value(values[values.length - 1]) }));
  }

  async junk() {
    await this.app.corrections.junk(this.chosen);
  }

  /** @param {KeyboardEvent} event */
  key({ key }) {
    if (key !== "j") return false;
    if (this.chosen.length) this.junk();
    return true;
  }

  /** The keyboard starts at the kinds. */
  enter() {
    /** @type {HTMLElement | null} */ (this.tabs.querySelector("button"))?.focus({ preventScroll: true });
  }
}

/** @param {SuspectGroup[]} groups */
const imagesIn = (groups) => groups.reduce((all, { rows }) => all + rows.length, 0);
