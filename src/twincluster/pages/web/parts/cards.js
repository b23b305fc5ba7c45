// Clusters as cards: sorted and filtered, drawn a few dozen at a time.
import { button, choices, count, decimal, find, make, note, plural, press } from "./dom.js";
import { swatch } from "./palette.js";

/** @import { Child, Cluster } from "../types.js" */

const CARDS_AT_ONCE = 24;

/**
 * How cards can be sorted. `described` names the order by rising `value`, then the opposite order.
 * @type {Record<string, {text: string, first: 1 | -1, described: [string, string], value: null | ((cluster: Cluster, direction: 1 | -1) => number)}>}
 */
const ORDERS = {
  size: { text: "Size", first: -1, described: ["smallest first", "largest first"], value: (cluster) => cluster.size },
  confidence: {
    text: "Confidence", first: 1, described: ["least certain first", "most certain first"],
    value: (cluster, direction) => cluster.confidence ?? 2 * direction, // empty clusters come last in both orders
  },
  name: { text: "Name", first: 1, described: ["from the first", "from the last"], value: null },
};

/**
 * The cards of all clusters.
 * @template {Cluster} C
 */
export class Cards {
  /**
   * @param {C[]} clusters
   * @param {object} options
   * @param {(cluster: C) => HTMLElement} options.card
   * @param {(cluster: C) => string} options.title
   * @param {number} options.filterFrom  clusters from which there is a search field
   */
  constructor(clusters, { card, title, filterFrom }) {
    this.clusters = clusters;
    this.card = card;
    this.title = title;
    this.order = "size";
    /** @type {1 | -1} */
    this.direction = -1;
    this.shown = CARDS_AT_ONCE;
    this.wanted = "";
    const names = Object.entries(ORDERS).map(([name, { text }]) => /** @type {[string, string]} */ ([name, text]));
    this.sorting = choices("Sort by", names, this.order, (name) => this.sort(name));
    this.status = make("p", { class: "note", role: "status" });
    this.grid = make("div", { class: "cards" });
    this.more = button("", () => this.showMore());
    this.sizes = new ResizeObserver(([{ contentRect: { height } }]) => { // 0 when the card has left the page
      if (height) this.grid.style.setProperty("--card", `${height}px`);
    });
    this.field = make("input", { type: "search", placeholder: "Find a cluster", "aria-label": "Find a cluster by name or number" });
    this.field.addEventListener("input", () => this.filter(this.field.value));
    const many = clusters.length >= filterFrom;
    const tools = make("div", { class: "row tools" }, make("span", { class: "note", text: "Sort by" }), this.sorting, many ? this.field : null);
    this.body = make("div", {}, tools, this.status, this.grid, make("p", { class: "more" }, this.more));
    this.draw();
  }

  /** @param {string} text */
  filter(text) {
    this.wanted = text.trim().toLowerCase();
    this.draw();
  }

  /** @param {string} name */
  sort(name) {
    this.direction = name !== this.order ? ORDERS[name].first : this.direction === 1 ? -1 : 1;
    this.order = name;
    press(this.sorting, name);
    this.draw();
  }

  showMore() {
    const before = this.grid.children.length;
    this.shown += 2 * CARDS_AT_ONCE;
    this.draw();
    this.grid.children[before]?.querySelector("h3")?.focus();
  }

  /**
   * Scrolls to the card of a cluster.
   * @param {number} id
   */
  reveal(id) {
    this.wanted = this.field.value = "";
    this.shown = Math.max(this.shown, this.sorted().findIndex((cluster) => cluster.id === id) + 1);
    this.draw();
    const title = find(`cluster-${id}`).querySelector("h3");
    title?.scrollIntoView({ block: "center" });
    title?.focus({ preventScroll: true });
  }

  sorted() {
    const { value } = ORDERS[this.order];
    /** @type {(one: C, other: C) => number} */
    const byName = (one, other) => this.title(one).localeCompare(this.title(other), "en", { numeric: true });
    /** @type {(one: C, other: C) => number} */
    const compare = value ? (one, other) => value(one, this.direction) - value(other, this.direction) : byName;
    const found = this.clusters.filter((cluster) => `${cluster.name} ${this.title(cluster)}`.toLowerCase().includes(this.wanted));
    return found.sort((one, other) => this.direction * compare(one, other) || one.id - other.id);
  }

  draw() {
    const found = this.sorted();
    const cards = found.slice(0, this.shown);
    this.grid.replaceChildren(...cards.map((cluster) => this.card(cluster)));
    this.sizes.disconnect();
    if (this.grid.firstElementChild) this.sizes.observe(this.grid.firstElementChild);
    const { text, described } = ORDERS[this.order];
    const rest = Math.min(2 * CARDS_AT_ONCE, found.length - cards.length);
    this.status.textContent = `${plural(found.length, "cluster")} by ${text.toLowerCase()}, ${described[this.direction < 0 ? 1 : 0]}`;
    this.more.textContent = `Show ${rest} more of ${count(found.length)}`;
    this.more.hidden = cards.length === found.length;
  }
}

/**
 * The card of one cluster.
 * @param {Cluster} cluster
 * @param {object} parts
 * @param {HTMLElement} parts.title
 * @param {HTMLElement} [parts.corner]  beside the title
 * @param {(string | null)[]} parts.facts
 * @param {string} parts.empty  stands instead of what follows where the cluster has no images
 * @param {Child[]} [parts.meters]  below that of the confidence
 * @param {[heading: string | null, gallery: HTMLElement | null][]} parts.galleries
 * @param {HTMLElement | null} parts.actions
 */
export function clusterCard(cluster, { title, corner, facts, empty, meters = [], galleries, actions }) {
  const heading = make("h3", { tabindex: "-1" }, swatch(cluster.id), title);
  const card = make("article", { class: "card", id: `cluster-${cluster.id}`, "data-id": cluster.id },
    corner ? make("div", { class: "card-top" }, heading, corner) : heading, note(facts.filter(Boolean).join(" · ")));
  if (!cluster.size) {
    card.append(note(empty));
    return card;
  }
  const images = galleries.filter(([, one]) => one).map(([text, one]) => [text ? make("h4", { text }) : null, one]);
  for (const one of [meter("mean confidence", cluster.confidence), ...meters, ...images.flat(), actions]) if (one) card.append(one);
  return card;
}

/**
 * A value between 0 and 1 as a bar.
 * @param {string} text
 * @param {number | null} value
 */
export function meter(text, value) {
  const bar = make("span", { class: "meter-bar" });
  bar.style.width = `${100 * (value ?? 0)}%`;
  return make("p", { class: "meter" },
    make("span", { class: "note", text }),
    make("span", { class: "meter-track", "aria-hidden": "true" }, bar),
    make("span", { class: "figure", text: decimal(value) }));
}

/**
 * Puts the focus on a neighbouring card.
 * @param {HTMLElement} place
 * @param {string} key
 */
export function stepCards(place, key) {
  const cards = [...place.querySelectorAll(".card")];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  /** @param {Element} card */
  const top = (card) => card.getBoundingClientRect().top;
  const columns = Math.max(1, cards.filter((card) => top(card) === top(cards[0])).length);
  /** @type {Record<string, number>} */
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const next = cards[at < 0 ? 0 : at + steps[key]]?.querySelector("a");
  next?.focus();
  return Boolean(next);
}
