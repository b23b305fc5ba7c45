// Clusters as cards: sorted and filtered as one likes, drawn a few dozen at a time.
import { make, find, count, plural, percent, decimal, note, button, choices, press } from "./dom.js";
import { swatch } from "./palette.js";
import { gallery } from "./viewer.js";

const CARDS_AT_ONCE = 24;
const FILTER_FROM = 25; // clusters from which a search field helps

const ORDERS = {
  size: { text: "Size", first: -1, said: ["smallest first", "largest first"], of: (cluster) => cluster.size },
  confidence: {
    text: "Confidence", first: 1, said: ["least certain first", "most certain first"],
    of: (cluster, direction) => cluster.confidence ?? 2 * direction, // those without images come last, either way
  },
  name: { text: "Name", first: 1, said: ["from the first", "from the last"], of: null },
};

export class Cards {
  constructor(data, viewer, showOnMap) {
    Object.assign(this, { data, viewer, showOnMap, order: "size", direction: -1, shown: CARDS_AT_ONCE, wanted: "" });
    const names = Object.entries(ORDERS).map(([name, { text }]) => [name, text]);
    this.sorting = choices("Sort by", names, this.order, (name) => this.sort(name));
    this.status = make("p", { class: "note", role: "status" });
    this.grid = make("div", { class: "cards" });
    this.more = button("", () => this.showMore());
    this.sizes = new ResizeObserver(([{ contentRect: { height } }]) => { // 0 once the card is not on the page any more
      if (height) this.grid.style.setProperty("--card", `${height}px`);
    });
    this.field = make("input", {
      type: "search", placeholder: "Find a cluster", "aria-label": "Find a cluster by name or number",
      oninput: () => this.filter(this.field.value),
    });
    const many = data.clusters.length >= this.filterFrom;
    const tools = make("div", { class: "row tools" }, make("span", { class: "note", text: "Sort by" }), this.sorting, many ? this.field : null);
    this.body = make("div", {}, tools, this.status, this.grid, make("p", { class: "more" }, this.more));
    this.draw();
  }

  get filterFrom() {
    return FILTER_FROM;
  }

  filter(text) {
    this.wanted = text.trim().toLowerCase();
    this.draw();
  }

  sort(name) {
    this.direction = name === this.order ? -this.direction : ORDERS[name].first;
    this.order = name;
    press(this.sorting, name);
    this.draw();
  }

  showMore() {
    const before = this.grid.children.length;
    this.shown += 2 * CARDS_AT_ONCE;
    this.draw();
    this.grid.children[before]?.querySelector("h3").focus();
  }

  /** The card of a cluster, in sight. */
  reveal(id) {
    this.wanted = this.field.value = "";
    this.shown = Math.max(this.shown, this.sorted().findIndex((cluster) => cluster.id === id) + 1);
    this.draw();
    const title = find(`cluster-${id}`).querySelector("h3");
    title.scrollIntoView({ block: "center" });
    title.focus({ preventScroll: true });
  }

  sorted() {
    const { of } = ORDERS[this.order];
    const names = this.data.labels.names;
    const title = (cluster) => titleOf(cluster, names);
    const byName = (one, other) => title(one).localeCompare(title(other), "en", { numeric: true });
    const compare = of ? (one, other) => of(one, this.direction) - of(other, this.direction) : byName;
    const matches = (cluster) => `${cluster.name} ${title(cluster)}`.toLowerCase().includes(this.wanted);
    const found = this.data.clusters.filter(matches);
    return found.sort((one, other) => this.direction * compare(one, other) || one.id - other.id);
  }

  draw() {
    const found = this.sorted();
    const cards = found.slice(0, this.shown);
    this.grid.replaceChildren(...cards.map((cluster) => this.card(cluster)));
    this.sizes.disconnect();
    if (cards.length) this.sizes.observe(this.grid.firstElementChild);
    const { text, said } = ORDERS[this.order];
    const rest = Math.min(2 * CARDS_AT_ONCE, found.length - cards.length);
    this.status.textContent = `${plural(found.length, "cluster")} by ${text.toLowerCase()}, ${said[this.direction < 0 ? 1 : 0]}`;
    this.more.textContent = `Show ${rest} more of ${count(found.length)}`;
    this.more.hidden = cards.length === found.length;
  }

  card(cluster) {
    const names = this.data.labels.names;
    const title = titleOf(cluster, names);
    const said = [title === cluster.name ? null : cluster.name, plural(cluster.size, this.data.run.kind.slice(0, -1)), percent(cluster.share)];
    const card = make("article", { class: "card", id: `cluster-${cluster.id}` },
      make("h3", { tabindex: "-1" }, swatch(cluster.id), make("span", { text: title })),
      note(said.filter(Boolean).join(" · ")));
    if (!cluster.size) {
      card.append(note("Nothing was put here."));
      return card;
    }
    card.append(meter("mean confidence", cluster.confidence));
    if (cluster.purity !== undefined) card.append(meter("purity", cluster.purity), note(composition(cluster, names)));
    for (const [text, list, kind] of [["Most typical", cluster.typical, "typical"], ["Least certain", cluster.doubtful, "doubtful"]]) {
      if (list.length) card.append(make("h4", { text }), gallery(list, this.viewer, kind));
    }
    if (this.showOnMap) {
      const properties = { class: "quiet", "aria-label": `Show ${title} on the map` };
      card.append(button("Show on the map", () => this.showOnMap(cluster.id), properties));
    }
    return card;
  }
}

/** What a cluster is called: as a person has named it, or the class that makes up most of it, where labels say so. */
export function titleOf(cluster, names) {
  if (cluster.named || !cluster.classes || !cluster.classes.length) return cluster.name;
  const [code] = cluster.classes[0];
  const name = String(names[code] ?? code);
  return /^\d+$/.test(name) ? `Class ${name}` : name;
}

function composition(cluster, names) {
  const parts = cluster.classes.map(([code, many]) => `${names[code] ?? code} ${percent(many / cluster.labelled)}`);
  return parts.join(", ");
}

export function meter(text, value) {
  const bar = make("span", { class: "meter-bar" });
  bar.style.width = `${100 * value}%`;
  return make("p", { class: "meter" },
    make("span", { class: "note", text }),
    make("span", { class: "meter-track", "aria-hidden": "true" }, bar),
    make("span", { class: "figure", text: decimal(value) }));
}
