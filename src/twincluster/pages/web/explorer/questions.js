// One image at a time: which cluster does it belong to? The next questions and pictures are loaded in advance; answers
// are sent in the background, in order.
import { ask, field, messageOf, textInput } from "../parts/dialogs.js";
import { baseName, button, make, note, percent } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";
import { clusterPicker } from "./corrections.js";
import { keep, kept } from "./memory.js";

/** @import { Question } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

const OFFERED = 5; // clusters offered at once
const EACH = 4; // typical images of each
const AHEAD = 8; // questions loaded in advance
const STAY = 3; // questions that stay when a new lesson has better ones
const RANDOM_EVERY = 5; // every fifth question is about a random image
const MOST_SKIPPED = 400;
const RETRY = 500; // milliseconds until more questions are requested
const JUNK = -2;

/** @typedef {{question: Question, from: number, edits: number}} Step what `u` takes back */

export class Questions {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    const before = kept(app, "questions", { queue: /** @type {Question[]} */ ([]), skipped: /** @type {number[]} */ ([]), run: 0 });
    /** @type {Question[]} the first is on the screen */
    this.queue = before.queue;
    this.skipped = new Set(before.skipped);
    this.run = before.run; // questions since the last random one
    /** @type {Set<number>} rows that this page has answered */
    this.answered = new Set();
    /** @type {Step[]} */
    this.past = [];
    this.foreign = app.talk.foreign;
    this.asking = false;
    this.again = false;
    this.done = false; // whether no question is left
    /** @type {number | null} number of the edits that the questions are about */
    this.about = null;
    /** @type {Map<string, HTMLElement>} typical images of clusters */
    this.strips = new Map();
    this.picture = button(null, () => this.look(), { class: "teach-picture" });
    this.path = note("");
    this.random = make("p", { class: "note random", text: "A random image: its answer counts for the estimate." });
    this.offers = Array.from({ length: OFFERED }, (_, at) => {
      const offer = button(null, (event) => this.choose(at, event), { class: "offer", "aria-keyshortcuts": String(at + 1) });
      return make("li", {}, offer);
    });
    /** @type {(key: string, text: string, act: () => unknown) => HTMLElement} */
    const deed = (key, text, act) => button(null, (event) => { act(); this.unfocus(event); }, { "aria-keyshortcuts": key === "space" ? "Space" : key });
    /** @type {[key: string, text: string, act: () => unknown][]} */
    const deeds = [["n", "New cluster…", () => this.newCluster()], ["m", "Another…", () => this.another()], ["0", "None of these", () => this.none()],
      ["j", "Junk", () => this.answer(JUNK)], ["space", "Skip", () => this.skip()], ["u", "Undo", () => this.undo()]];
    this.deeds = make("div", { class: "row deeds", role: "group", "aria-label": "Other answers" }, deeds.map(([key, text, act]) => {
      const one = deed(key, text, act);
      one.append(make("kbd", { text: key }), ` ${text}`);
      return one;
    }));
    this.question = make("div", { class: "question" },
      make("div", { class: "asked-about" }, this.picture, this.path, this.random),
      make("div", {}, make("h3", { text: "Where does it belong?" }), make("ol", { class: "offers" }, this.offers), this.deeds));
    this.empty = make("div", { hidden: true }, note("No question is left: every image is answered or skipped."),
      button("Ask again about skipped images", () => { this.skipped.clear(); this.fetch(); }));
    this.body = make("div", {}, this.question, this.empty);
    this.question.hidden = true;
  }

  get current() {
    return /** @type {Question | undefined} */ (this.queue[0]);
  }

  enter() {
    for (const question of this.queue) this.prepare(question);
    this.show();
    this.fetch();
  }

  /** After every change of the state, whoever made it. */
  refresh() {
    if (this.app.talk.foreign !== this.foreign) { // an undo would revert somebody else's edit
      this.foreign = this.app.talk.foreign;
      this.past = [];
      this.fetch();
    }
    this.show();
  }

  learned() {
    if (this.app.lessons.now.asked !== this.about) this.fetch();
  }

  /** Requests more questions, and checks whether the loaded ones are still open. */
  async fetch() {
    if (this.asking || this.app.lessons.now.stage !== "ready") {
      this.again = this.asking;
      return;
    }
    this.asking = true;
    const asked = this.queue.slice(0, STAY).map(({ row }) => row);
    const without = [...this.skipped, ...this.answered].slice(-MOST_SKIPPED);
    try {
      const query = new URLSearchParams({ count: String(AHEAD), keep: asked.join(","), without: without.join(",") });
      const found = await this.app.talk.ask(`/api/questions?${query}`);
      this.about = found.asked;
      this.take(asked, found.kept, found.questions, found.samples);
      this.done = !found.left;
      this.show();
      if (!this.queue.length && found.left) setTimeout(() => this.fetch(), RETRY);
    } catch (error) {
      this.app.tell(messageOf(error));
    }
    this.asking = false;
    if (this.again) {
      this.again = false;
      this.fetch();
    }
  }

  /**
   * Orders the questions: those that stay, then new ones, every fifth of them about a random image.
   * @param {number[]} asked
   * @param {Question[]} open
   * @param {Question[]} useful
   * @param {Question[]} random
   */
  take(asked, open, useful, random) {
    const fresh = new Map(open.map((question) => [question.row, question.clusters]));
    const [first, ...others] = this.queue.filter(({ row }) => fresh.has(row) || !asked.includes(row));
    const stay = first ? [first, ...others.slice(0, STAY - 1)] : [];
    for (const question of others) question.clusters = fresh.get(question.row) ?? question.clusters;
    const out = new Set([...this.answered, ...this.skipped, ...stay.map(({ row }) => row)]);
    const next = { useful: useful.filter(({ row }) => !out.has(row)), random: random.filter(({ row }) => !out.has(row)) };
    let since = this.run;
    for (const { sample } of stay) since = sample ? 0 : since + 1;
    while (stay.length < AHEAD && (next.useful.length || next.random.length)) {
      const sample = next.random.length > 0 && (since >= RANDOM_EVERY - 1 || !next.useful.length);
      const question = /** @type {Question} */ ((sample ? next.random : next.useful).shift());
      stay.push(this.prepare({ ...question, sample, from: 0 }));
      since = sample ? 0 : since + 1;
    }
    this.queue = stay;
    this.save();
  }

  /**
   * Loads what a question shows.
   * @param {Question} question
   */
  prepare(question) {
    const { pictures } = this.app;
    if (!(question.picture instanceof HTMLElement)) {
      question.picture = pictures.element(question.row);
      if (question.picture) {
        question.picture.loading = "eager";
        question.picture.decoding = "sync";
        question.picture.src = pictures.address(question.row, "image");
        question.picture.decode().catch(() => {});
      }
    }
    for (const { id } of question.clusters.slice(0, OFFERED)) this.strip(id);
    return question;
  }

  /**
   * Typical images of a cluster; the element is reused while they do not change.
   * @param {number} id
   */
  strip(id) {
    const { pictures, talk } = this.app;
    const rows = talk.byId.get(id)?.typical.slice(0, EACH) ?? [];
    const known = `${id}:${rows.join(",")}`;
    let strip = this.strips.get(known);
    if (!strip) {
      if (this.strips.size > 500) this.strips.clear();
      const images = rows.map((row) => pictures.element(row)).filter((one) => one !== null);
      for (const image of images) image.loading = "eager";
      strip = make("span", { class: "offer-images", "aria-hidden": "true" }, images);
      this.strips.set(known, strip);
    }
    return strip;
  }

  /** Draws the question; unchanged elements are not touched. */
  show() {
    const { current, app } = this;
    this.question.hidden = !current;
    this.empty.hidden = Boolean(current) || !this.done;
    if (!current) return;
    this.prepare(current);
    const shown = current.picture ?? make("span", { class: "tile-name", text: `${app.talk.one} ${current.row}` });
    if (this.picture.firstChild !== shown) this.picture.replaceChildren(shown);
    this.picture.setAttribute("aria-label", `Open ${app.talk.one} ${current.row}`);
    this.picture.dataset.row = String(current.row);
    this.random.hidden = !current.sample;
    this.offered().forEach((choice, at) => this.offer(this.offers[at], at, choice));
    this.describe(current);
  }

  /** The clusters on the screen, padded with null. */
  offered() {
    const { current, app } = this;
    const there = current?.clusters.filter(({ id }) => app.talk.byId.has(id)) ?? [];
    const from = current?.from ?? 0;
    return Array.from({ length: OFFERED }, (_, at) => there[from + at] ?? null);
  }

  /** @type {(item: HTMLElement, at: number, choice: {id: number, probability: number} | null) => void} */
  offer(item, at, choice) {
    item.hidden = !choice;
    if (!choice) return;
    const { talk } = this.app;
    const name = talk.nameOf(choice.id);
    const strip = this.strip(choice.id);
    const key = `${choice.id}:${name}:${choice.probability}`;
    const offer = /** @type {HTMLElement} */ (item.firstElementChild);
    if (offer.dataset.key === key && offer.contains(strip)) return;
    offer.dataset.key = key;
    offer.dataset.cluster = String(choice.id);
    offer.replaceChildren(make("kbd", { text: String(at + 1) }),
      make("span", { class: "offer-name" }, swatch(choice.id), make("span", { text: name })),
      make("span", { class: "figure note", text: percent(choice.probability) }), strip);
  }

  /** @param {Question} question */
  async describe(question) {
    const { talk } = this.app;
    this.path.textContent = question.path ?? "\u00a0";
    if (question.path !== undefined) return;
    question.path = "";
    const rows = this.queue.filter((one) => !one.path).map(({ row }) => row);
    try {
      const found = new Map((await talk.ask(`/api/details?rows=${rows.join(",")}`)).map((/** @type {any} */ one) => [one.row, one]));
      for (const one of this.queue) {
        const known = found.get(one.row);
        if (known) one.path = `${baseName(known.path)} · now in ${talk.nameOf(known.cluster)}`;
      }
    } catch {
      return;
    }
    if (this.current) this.path.textContent = this.current.path || "\u00a0";
  }

  /** Stores the position for a reload. */
  save() {
    const queue = this.queue.slice(0, STAY).map(({ row, clusters, sample, from }) => ({ row, clusters, sample, from }));
    keep(this.app, "questions", { queue, skipped: [...this.skipped].slice(-MOST_SKIPPED), run: this.run });
  }

  /** @type {(at: number, event?: Event) => void} */
  choose(at, event) {
    const choice = this.offered()[at];
    if (choice) this.answer(choice.id);
    this.unfocus(event);
  }

  /**
   * Keys belong to the page after a click, not to the button: space skips.
   * @param {Event} [event]
   */
  unfocus(event) {
    if (/** @type {MouseEvent | undefined} */ (event)?.detail && !document.querySelector("dialog[open]")) {
      /** @type {HTMLElement | null} */ (document.querySelector("main"))?.focus({ preventScroll: true });
    }
  }

  /** @param {number} to */
  answer(to) {
    const { current } = this;
    if (!current) return;
    this.advance(current, 1);
    this.send(current, "answer", { rows: [current.row], to, sample: current.sample });
  }

  /** @type {(question: Question, edits: number) => void} */
  advance(question, edits) {
    this.past.push({ question, from: question.from, edits });
    this.queue = this.queue.filter((one) => one !== question);
    if (edits) this.answered.add(question.row);
    this.run = question.sample ? 0 : this.run + 1;
    this.show();
    this.save();
    if (this.queue.length < AHEAD - STAY) this.fetch();
  }

  /**
   * Sends an answer after the earlier ones. If it is rejected, its question comes back.
   * @type {(question: Question, kind: string, fields: Record<string, unknown>) => void}
   */
  send(question, kind, fields) {
    const { from } = question;
    this.app.talk.edit(kind, fields).catch((error) => {
      this.past = this.past.filter((step) => step.question !== question);
      this.back(question, kind === "refuse" ? Math.max(0, from - OFFERED) : from);
      this.app.tell(messageOf(error));
    });
  }

  /** @type {(question: Question, from: number) => void} */
  back(question, from) {
    question.from = from;
    this.answered.delete(question.row);
    this.skipped.delete(question.row);
    this.queue = [question, ...this.queue.filter((one) => one !== question)];
    this.show();
    this.save();
  }

  /** None of the five: shows the next five, until there are no more. */
  none() {
    const { current } = this;
    if (!current) return;
    const apart = this.offered().filter((choice) => choice !== null).map(({ id }) => id);
    const more = current.clusters.filter(({ id }) => this.app.talk.byId.has(id)).length > current.from + OFFERED;
    if (more) {
      this.past.push({ question: current, from: current.from, edits: 1 });
      current.from += OFFERED;
      this.show();
      this.save();
    } else {
      this.skipped.add(current.row);
      this.advance(current, 1);
    }
    if (apart.length) this.send(current, "refuse", { rows: [current.row], to: apart });
  }

  skip() {
    const { current } = this;
    if (!current) return;
    this.skipped.add(current.row);
    this.advance(current, 0);
  }

  /** Undoes the last step on this page, or else the newest edit of the run. */
  undo() {
    const step = this.past.pop();
    if (!step) return this.app.corrections.undo();
    this.back(step.question, step.from);
    return step.edits ? this.app.corrections.undo() : undefined;
  }

  /** Answers with a new cluster; the dialog refuses a name that is taken. */
  newCluster() {
    const { current, app } = this;
    if (!current) return undefined;
    const name = textInput("");
    return ask({
      title: "A new cluster", text: "Its first image is this one.", fields: [field("Name", name)], action: "Make it",
      act: async () => {
        const called = name.value.trim();
        await app.corrections.edit("answer", { rows: [current.row], name: called, sample: current.sample }, `${called} is a new cluster.`);
        this.advance(current, 1);
      },
    });
  }

  /** Answers with a cluster that is not among the five. */
  another() {
    const { current, app } = this;
    if (!current) return undefined;
    const picker = clusterPicker(app.talk.state.clusters, "Cluster");
    return ask({ title: "Which cluster?", fields: picker.body, action: "This one", act: async () => {
      const to = picker.value();
      return () => this.answer(to);
    } });
  }

  look() {
    if (this.current) this.app.viewer.open([this.current.row], 0);
  }

  /** @param {KeyboardEvent} event */
  key({ key, target }) {
    const { tagName } = /** @type {Element} */ (target);
    if (/^[1-5]$/.test(key)) this.choose(Number(key) - 1);
    else if (key === "0") this.none();
    else if (key === "n") this.newCluster();
    else if (key === "m") this.another();
    else if (key === "j") this.answer(JUNK);
    else if (key === " " && !["BUTTON", "A"].includes(tagName)) this.skip();
    else if (key === "Enter" && !["BUTTON", "A"].includes(tagName)) this.look();
    else return false;
    return true;
  }
}
