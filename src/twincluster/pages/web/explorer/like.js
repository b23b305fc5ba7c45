// A growing set of images: it offers the fifty most similar ones; untick the wrong ones, take the rest, repeat.
import { messageOf } from "../parts/dialogs.js";
import { button, count, make, note, plural } from "../parts/dom.js";
import { gallery } from "../parts/gallery.js";
import { SelectionGrid } from "./lists.js";
import { keep, kept } from "./memory.js";

/** @import { Explorer } from "./explorer.js" */

const SHOWN = 16; // examples shown

export class LikeView {
  /**
   * @param {Explorer} app
   * @param {number[]} like  images to begin with; none goes on from where the page was
   */
  constructor(app, like) {
    this.app = app;
    const before = like.length ? null : kept(app, "like", { like: [], unlike: [] });
    /** @type {number[]} */
    this.like = before?.like ?? like;
    /** @type {number[]} */
    this.unlike = before?.unlike ?? [];
    this.asked = 0;
    this.text = make("p", { class: "note", role: "status" });
    this.examples = make("div", { class: "examples" });
    this.list = new SelectionGrid(app, { of: "like", toggles: true, taken: () => this.taken });
    this.next = button("Next 50", () => this.step(), { class: "main", "aria-keyshortcuts": "l" });
    this.body = make("section", { class: "list", "aria-labelledby": "title" },
      make("div", { class: "row list-top" }, make("h2", { id: "title", class: "title", text: "More like these" }), make("div", { class: "row" }, this.next)),
      this.text, this.examples, this.list.bar, this.list.grid.body);
    this.show();
  }

  /** Draws the examples and the offered images. */
  get taken() {
    return [...new Set([...this.like, ...this.list.rows])];
  }

  /** Takes the ticked images, rejects the rest, and searches again. */
  step() {
    const ticked = this.list.grid.selected;
    const left = this.list.grid.rows.filter((row) => !ticked.has(row));
    this.like = this.taken;
    this.unlike = [...new Set([...this.unlike, ...left])];
    return this.show();
  }

  async show() {
    const { app, like, unlike } = this;
    this.drawExamples();
    if (!like.length) {
      this.text.textContent = "Select some images anywhere, then press L: the images most like them appear here.";
      this.next.disabled = true;
      return;
    }
    keep(app, "like", { like, unlike });
    const turn = ++this.asked;
    this.text.textContent = "Looking …";
    try {
      const { rows, searched } = await app.talk.ask("/api/grow", {
        method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ like, unlike }) });
      if (turn !== this.asked) return;
      this.text.textContent = rows.length ? `The next ${count(rows.length)} of all ${plural(searched, app.talk.one)}, whatever their cluster. `
        + "Take out what is wrong; then Next 50 (L), or say below where all of them belong."
        : `Nothing is left: all ${plural(searched, app.talk.one)} are taken or left out.`;
      this.list.grid.show(rows);
      this.list.grid.selectAll();
      if (rows.length) this.list.grid.go(0, false);
      this.enter();
    } catch (error) {
      this.text.textContent = messageOf(error);
    }
  }

  drawExamples() {
    const { pictures, talk, viewer } = this.app;
    const { like, unlike } = this;
    const images = like.slice(-SHOWN).map((row) => pictures.thumb(row, `Open ${talk.one} ${row}`, () => viewer.open(like, like.indexOf(row))));
    this.examples.replaceChildren(...(like.length ? [
      note(`${plural(like.length, "example")}${unlike.length ? `, ${count(unlike.length)} left out` : ""}`), gallery(images, "strip-of")] : []));
  }

  refresh() {
    this.list.draw();
  }

  get results() {
    return this.list.grid.body;
  }

  enter() {
    this.results.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "l") this.step();
    else if (event.key === "Escape") this.app.go("clusters");
    else return this.list.key(event);
    return true;
  }
}
