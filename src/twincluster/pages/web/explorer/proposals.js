// Proposed moves: groups of images, each from one cluster to another, to accept or refuse.
import { stepCards } from "../parts/cards.js";
import { button, decimal, make, note, plural } from "../parts/dom.js";
import { gallery } from "../parts/gallery.js";
import { messageOf } from "../parts/dialogs.js";
import { way, whyNot, wouldMove } from "./lessons.js";
import { SelectionGrid } from "./lists.js";

/** @import { Group } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

const LEARNING = "Learning from your corrections …";
const NOTHING = "Nothing would move. Confirm, move or junk some images, or answer questions under Teach.";

/** The groups, each a card. */
export class ProposalsView {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    /** @type {Group[]} */
    this.groups = [];
    /** @type {number | null} number of the edits that the groups are about */
    this.number = null;
    this.asked = 0;
    this.heading = make("h2", { id: "title", class: "title", text: "Proposals" });
    this.text = make("p", { class: "note", role: "status" });
    this.all = button("Accept all", () => this.acceptAll(), { class: "main", "aria-keyshortcuts": "a" });
    this.cards = make("div", { class: "cards" });
    this.body = make("section", { class: "proposals", "aria-labelledby": "title" }, make("div", { class: "row list-top" }, this.heading, this.all), this.text, this.cards);
    this.refresh();
  }

  async refresh() {
    const { app } = this;
    this.mark();
    if (!app.lessons.fresh || this.number === app.talk.state.number) return;
    const turn = ++this.asked;
    try {
      const found = await app.talk.ask("/api/proposals");
      if (turn !== this.asked) return;
      this.number = found.number;
      this.groups = found.groups;
      this.draw(found.moves, found.more);
    } catch (error) {
      app.tell(messageOf(error));
    }
  }

  /** Called for a new lesson. */
  learned() {
    this.refresh();
  }

  /** Shows whether the proposals are about the newest edit; if not, nothing can be accepted. */
  mark() {
    const { app, number, groups } = this;
    const stale = number !== app.talk.state.number;
    const why = whyNot(app.lessons.now);
    this.body.classList.toggle("stale", stale);
    this.all.hidden = !groups.length;
    for (const one of this.body.querySelectorAll("button.deed, .main")) one.setAttribute("aria-disabled", String(stale));
    if (why || stale) this.text.textContent = why || LEARNING;
  }

  /** @type {(moves: number, more: number) => void} */
  draw(moves, more) {
    const focused = document.activeElement?.closest(".card")?.id;
    this.heading.textContent = moves ? wouldMove(moves, this.app.talk.one) : "Proposals";
    this.text.textContent = !moves ? NOTHING : "The most certain come first. Undo (U) takes back what you accept."
      + (more ? ` ${plural(more, "small group")} not shown.` : "");
    this.cards.replaceChildren(...this.groups.map((group) => this.card(group)));
    this.mark();
    if (focused) (document.getElementById(focused) ?? this.cards.firstElementChild)?.querySelector("a")?.focus({ preventScroll: true });
  }

  /** @param {Group} group */
  card(group) {
    const { pictures, talk, viewer } = this.app;
    const { source, to, size, certainty, rows } = group;
    const name = `${talk.nameOf(source)} to ${talk.nameOf(to)}`;
    const images = rows.slice(0, 8).map((row, at) => pictures.thumb(row, `Open ${talk.one} ${row}`, () => viewer.open(rows, at)));
    /** @type {(text: string, act: () => unknown, kind: string) => HTMLButtonElement} */
    const deed = (text, act, kind) => button(text, act, { class: `deed ${kind}`, "aria-label": `${text}: ${name}` });
    return make("article", { class: "card", id: `group-${source}-${to}`, "data-source": source, "data-to": to },
      make("h3", {}, make("a", { href: `#proposals/${source}/${to}` }, way(this.app, source, to))),
      note(`${plural(size, talk.one)} · certainty ${decimal(certainty)}`), gallery(images, "typical"),
      make("p", { class: "row deeds" }, deed("Accept", () => this.accept([group]), "quiet"),
        make("a", { class: "quiet", href: `#proposals/${source}/${to}`, text: "Look through", "aria-label": `Look through: ${name}` }),
        deed("Refuse", () => this.refuse(group), "quiet")));
  }

  acceptAll() {
    if (this.groups.length) this.accept(null);
  }

  /** @param {Group[] | null} groups */
  accept(groups) {
    if (this.number !== this.app.talk.state.number) return this.app.tell(LEARNING);
    return this.app.corrections.accept(groups, (groups ?? this.groups).reduce((sum, { size }) => sum + size, 0));
  }

  /** @param {Group} group */
  refuse(group) {
    if (this.number !== this.app.talk.state.number) return this.app.tell(LEARNING);
    return this.app.corrections.refuse(group);
  }

  get results() {
    return /** @type {HTMLElement | null} */ (this.body.querySelector(".card a"));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const card = /** @type {HTMLElement | null} */ (document.activeElement?.closest(".card"));
    const group = card && this.groups.find(({ source, to }) => card.id === `group-${source}-${to}`);
    if (event.key === "a") this.acceptAll();
    else if (event.key === "y" && group) this.accept([group]);
    else if (event.key === "x" && group) this.refuse(group);
    else if (event.key === "Escape") this.app.go("clusters");
    else if (event.key.startsWith("Arrow")) return stepCards(this.cards, event.key);
    else return false;
    return true;
  }
}

/** The images of one group. */
export class GroupView {
  /**
   * @param {Explorer} app
   * @param {number} source
   * @param {number} to
   */
  constructor(app, source, to) {
    this.app = app;
    this.source = source;
    this.to = to;
    /** @type {number | null} */
    this.number = null;
    this.asked = 0;
    this.heading = make("h2", { id: "title", class: "title" }, way(app, source, to));
    this.text = make("p", { class: "note", role: "status" });
    this.list = new SelectionGrid(app, { of: "group", cluster: source, like: (rows) => app.showLike(rows), extra: [
      { key: "x", text: "Do not belong there", act: (rows) => app.corrections.refuseRows(rows, to) }] });
    const deeds = make("div", { class: "row" },
      button("Accept the group", () => this.accept(), { class: "main", "aria-keyshortcuts": "y" }),
      button("Refuse the group", () => this.refuse(), { class: "deed" }));
    this.body = make("section", { class: "list", "aria-labelledby": "title" }, make("div", { class: "row list-top" }, this.heading, deeds),
      this.text, this.list.bar, this.list.grid.body);
    this.refresh();
  }

  get group() {
    return { source: this.source, to: this.to, size: this.list.grid.rows.length, certainty: 1, rows: [] };
  }

  async refresh() {
    const { app } = this;
    const stale = this.number !== app.talk.state.number;
    for (const one of this.body.querySelectorAll(".main, .deed")) one.setAttribute("aria-disabled", String(stale));
    if (stale) this.text.textContent = whyNot(app.lessons.now) || LEARNING;
    if (!app.lessons.fresh || !stale) return;
    const turn = ++this.asked;
    try {
      const { rows, number } = await app.talk.ask(`/api/proposals/${this.source}/${this.to}`);
      if (turn !== this.asked) return;
      this.number = number;
      this.heading.replaceChildren(...way(app, this.source, this.to).filter((one) => one !== null));
      this.list.grid.show(rows);
      this.list.draw();
      for (const one of this.body.querySelectorAll(".main, .deed")) one.setAttribute("aria-disabled", String(!rows.length || number !== app.talk.state.number));
      this.text.textContent = rows.length ? "The most certain come first. Select what does not belong there, then Do not belong there (X)."
        : "Nothing would move this way any more.";
    } catch (error) {
      app.tell(messageOf(error));
    }
  }

  learned() {
    this.refresh();
  }

  async accept() {
    if (this.number !== this.app.talk.state.number) return this.app.tell(LEARNING);
    if (!this.list.grid.rows.length) return undefined;
    if (await this.app.corrections.accept([this.group], this.group.size)) this.app.go("proposals");
    return undefined;
  }

  async refuse() {
    if (this.number !== this.app.talk.state.number) return this.app.tell(LEARNING);
    if (!this.list.grid.rows.length) return undefined;
    if (await this.app.corrections.refuse(this.group)) this.app.go("proposals");
    return undefined;
  }

  get results() {
    return this.list.grid.body;
  }

  enter() {
    this.results.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === "y") this.accept();
    else if (event.key === "Escape" && !this.list.grid.selected.size) this.app.go("proposals");
    else return this.list.key(event);
    return true;
  }
}
