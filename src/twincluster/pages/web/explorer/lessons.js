// What the teacher has learned from the corrections, polled until it is about the newest edit.
import { count, make, plural } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";

/** @import { Lesson } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

const SOON = 200; // milliseconds between two requests while a lesson is being computed
const LATER = 1500; // while the features are prepared, or the server does not answer

export class Lessons {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    /** @type {Lesson} */
    this.now = { stage: "preparing", absent: "", number: null };
    this.timer = 0;
    this.asking = false;
  }

  get moves() {
    return this.now.moves ?? 0;
  }

  /** Whether the lesson is about the newest edit. */
  get fresh() {
    return this.now.stage === "ready" && this.now.number === this.app.talk.state.number;
  }

  /** Polls until the lesson is about the newest edit. */
  follow() {
    clearTimeout(this.timer);
    if (!this.asking) this.look();
  }

  async look() {
    let wait = LATER;
    this.asking = true;
    try {
      this.now = await this.app.talk.ask("/api/lesson");
      wait = this.now.stage === "ready" ? SOON : LATER;
      this.app.learned();
    } catch {
      // the page already says that the server does not answer
    }
    this.asking = false;
    clearTimeout(this.timer);
    if (this.now.stage !== "absent" && !(this.fresh && this.now.settled)) this.timer = setTimeout(() => this.look(), wait);
  }
}

/** @param {number} moves */
export const wouldMove = (moves, one = "image") => `${plural(moves, one)} would move`;

/**
 * The reason why there is no lesson; "" if there is one.
 * @param {Lesson} lesson
 */
export function whyNot(lesson) {
  if (lesson.stage === "ready") return "";
  return lesson.absent ? `Nothing can be learned here: ${lesson.absent}.` : "Preparing: the images are being compared with each other …";
}

/**
 * The two clusters of a move, with their marks.
 * @param {Explorer} app
 * @param {number} source
 * @param {number} to
 */
export function way({ talk }, source, to) {
  /** @param {number} id */
  const mark = (id) => (id < 0 ? null : swatch(id));
  return [mark(source), make("span", { text: talk.nameOf(source) }), make("span", { text: "→", class: "arrow", "aria-label": "to" }),
    mark(to), make("span", { text: talk.nameOf(to) })];
}

/**
 * "87 of 100" as a percentage without false precision.
 * @param {number} share
 */
export const whole = (share) => `${count(Math.round(100 * share))}%`;
