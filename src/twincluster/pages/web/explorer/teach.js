// The Teach page: questions about single images, or contact sheets, and the estimate of correct images.
import { choices, make, note, plural, press } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";
import { whole, whyNot, wouldMove } from "./lessons.js";
import { Questions } from "./questions.js";
import { Sheets } from "./sheets.js";

/** @import { Estimate } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

/** @type {[name: string, text: string][]} */
const WAYS = [["questions", "Questions"], ["sheet", "Contact sheet"]];

export class TeachView {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    this.questions = new Questions(app);
    this.sheets = new Sheets(app);
    /** @type {Questions | Sheets} */
    this.mode = this.questions;
    this.ways = choices("Way to teach", WAYS, "questions", (name) => app.go(name === "sheet" ? "teach/sheet" : "teach"));
    this.wait = make("p", { class: "note", role: "status" });
    this.stage = make("div", { class: "teach-stage" });
    this.trust = make("aside", { class: "trust", "aria-labelledby": "trust-title" });
    this.body = make("section", { class: "teach", "aria-labelledby": "title" },
      make("div", { class: "row list-top" }, make("h2", { id: "title", class: "title", text: "Teach" }), this.ways),
      this.wait, make("div", { class: "teach-columns" }, this.stage, this.trust));
  }

  /** @param {string | undefined} way */
  choose(way) {
    this.mode = way === "sheet" ? this.sheets : this.questions;
    press(this.ways, way === "sheet" ? "sheet" : "questions");
    this.stage.replaceChildren(this.mode.body);
    return this;
  }

  enter() {
    this.mode.enter();
    this.learned();
  }

  refresh() {
    this.mode.refresh();
    this.drawTrust();
  }

  learned() {
    const { lessons } = this.app;
    this.wait.textContent = whyNot(lessons.now);
    this.wait.hidden = !this.wait.textContent;
    this.stage.hidden = this.trust.hidden = lessons.now.stage !== "ready";
    if (lessons.now.stage === "ready") this.mode.learned();
    this.drawTrust();
  }

  undo() {
    return this.mode.undo();
  }

  drawTrust() {
    const { lessons, talk } = this.app;
    const { trust, enough, examples = 0 } = lessons.now;
    const focused = this.trust.contains(document.activeElement);
    const moves = lessons.moves;
    this.trust.replaceChildren(
      make("h3", { id: "trust-title", text: "How far to trust it" }),
      ...(trust ? [make("p", { class: "share" }, make("strong", { class: "figure", text: whole(trust.overall.share) }), ` of the ${talk.state.run.kind} are in the right cluster`),
        interval(trust.overall),
        note(`95% interval ${whole(trust.overall.low)} to ${whole(trust.overall.high)}, from ${plural(trust.overall.count, "random image")}.`)]
        : [note("Every fifth question is about a random image. Answers to these say how many images are in the right cluster.")]),
      ...(trust?.clusters.length ? [this.table(trust.clusters)] : []),
      make("p", { class: "note" }, `${plural(examples, "example")} so far. `,
        enough ? make("strong", { text: "More answers would change little." }) : ""),
      ...(moves ? [make("p", {}, make("a", { href: "#proposals", class: "quiet", text: wouldMove(moves, talk.one) }))] : []));
    if (focused) this.trust.querySelector("a")?.focus();
  }

  /** @param {(Estimate & {id: number})[]} clusters */
  table(clusters) {
    const { talk } = this.app;
    const rows = clusters.filter(({ id }) => talk.byId.has(id)).sort((one, other) => one.share - other.share).map((one) =>
      make("tr", {}, make("th", { scope: "row" }, swatch(one.id), " ", talk.nameOf(one.id)), make("td", { class: "figure", text: whole(one.share) }),
        make("td", { class: "figure", text: `${whole(one.low)} to ${whole(one.high)}` })));
    return make("table", { class: "shares" }, make("thead", {}, make("tr", {}, make("th", { scope: "col", text: "Cluster" }),
      make("th", { scope: "col", text: "Right" }), make("th", { scope: "col", text: "95% interval" }))), make("tbody", {}, rows));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "Escape") this.app.go("clusters");
    else return this.app.lessons.now.stage === "ready" && this.mode.key(event);
    return true;
  }
}

/**
 * An interval as a bar between 0 and 1, with its estimate.
 * @param {Estimate} estimate
 */
function interval({ share, low, high }) {
  const range = make("span", { class: "interval-range" });
  range.style.left = `${100 * low}%`;
  range.style.width = `${Math.max(1, 100 * (high - low))}%`;
  const point = make("span", { class: "interval-point" });
  point.style.left = `${100 * share}%`;
  return make("p", { class: "interval", "aria-hidden": "true" }, range, point);
}
