// Made by tools/bundle_pages.py from explorer.js and the modules it imports: do not edit.
(() => {
"use strict";

// parts/dom.js
// Elements from names and text. Text is only ever set as text, so no name of a file can become markup.


const SVG = "http://www.w3.org/2000/svg";

function make(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

function makeSvg(tag, properties = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), properties, children);
}

function dress(element, properties, children = []) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = String(value);
    else if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const all = /** @type {Child[]} */ (children.flat(3));
  element.append(...all.filter((child) => child !== null && child !== undefined));
  return element;
}

function find(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`there is no element #${id}`);
  return element;
}

const count = (number) => number.toLocaleString("en-GB");

const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many || one + "s"}`;

const capitalised = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;

function percent(share) {
  if (share > 0 && share < 0.001) return "under 0.1%";
  const digits = share < 0.1 || (share > 0.995 && share < 1) ? 1 : 0;
  return `${(100 * share).toFixed(digits).replace(/\.0$/, "")}%`;
}

function decimal(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(digits).replace(/^(-?)0\./, "$1.");
}

const baseName = (path) => path.split("/").pop() || path;

const note = (text) => make("p", { class: "note", text });

const button = (text, act, properties = {}) => make("button", { type: "button", text, onclick: act, ...properties });

function choices(label, names, current, choose) {
  const buttons = names.map(([name, text]) =>
    button(text, () => choose(name), { "data-name": name, "aria-pressed": String(name === current) }));
  return make("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

function press(group, name) {
  for (const one of group.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset.name === name));
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { "aria-hidden": "true", class: "offstage" });
    area.value = text;
    (document.querySelector("dialog[open]") || document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

function copyButton(label, text) {
  const copy = button(label, async () => {
    copy.textContent = (await copyText(text())) ? "Copied" : "Select and copy by hand";
    setTimeout(() => { copy.textContent = label; }, 1600);
  });
  return copy;
}

// parts/dialogs.js
// Dialogs, and questions in them: a title, some fields, one button that acts.


class Refusal extends Error {}

async function ask({ title, text, fields = [], action, act }) {
  let after = /** @type {void | (() => unknown)} */ (undefined);
  const dialog = make("dialog", { class: "ask", "aria-labelledby": "asked" });
  const problem = make("p", { class: "warning", role: "alert", hidden: true });
  const go = make("button", { type: "submit", class: "main", text: action });
  const form = make("form", {}, make("h2", { id: "asked", text: title }), text ? note(text) : null, fields, problem,
    make("div", { class: "row answers" }, go, button("Cancel", () => dialog.close())));
  dialog.append(form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    problem.hidden = true;
    try {
      after = await act();
      dialog.close();
    } catch (error) {
      problem.textContent = messageOf(error);
      problem.hidden = false;
    }
    go.disabled = false;
  });
  await showDialog(dialog);
  return after?.();
}

const messageOf = (error) => (error instanceof Error ? error.message : String(error));

function showDialog(dialog) {
  const before = /** @type {HTMLElement} */ (document.activeElement);
  const card = before.closest(".card")?.id;
  document.body.append(dialog);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
  const first = /** @type {HTMLInputElement | null} */ (dialog.querySelector("[data-first]"));
  first?.focus();
  first?.select?.();
  dialog.scrollTop = 0; // the focus may have scrolled to a button below a long list
  return new Promise((done) => dialog.addEventListener("close", () => {
    dialog.remove();
    const again = before.isConnected ? before : card && document.getElementById(card)?.querySelector("a");
    if (again || document.activeElement === document.body) {
      (again || document.querySelector("main"))?.focus({ preventScroll: true });
    }
    done();
  }));
}

function field(label, input) {
  return make("label", { class: "field" }, make("span", { text: label }), input);
}

function textInput(value, properties = {}) {
  const input = make("input", { type: "text", maxlength: 200, autocomplete: "off", "data-first": true, ...properties });
  input.value = value;
  return input;
}

// parts/gallery.js
// A few images side by side, each a button.


function thumb({ picture, name, label, title = label, open }) {
  const opener = button(null, open, { class: picture ? "thumb" : "thumb named", "aria-label": label, title });
  opener.append(picture || make("span", { text: name }));
  return opener;
}

function gallery(images, kind, label = null) {
  const named = images.length && !images[0].picture;
  const items = images.map((image) => make("li", {}, thumb(image)));
  return make("ul", { class: `gallery ${kind}${named ? " names" : ""}`, "aria-label": label }, items);
}

// parts/suspects.js
// Images that may not belong: the kinds of problems.csv in words, and the slider of their threshold.

const KINDS = {
  exact_copy: { title: "Exact copies", why: "The same pixels, in files of any name.", value: () => "same pixels" },
  near_copy: {
    title: "Near copies", why: "Resized, recompressed or slightly cropped, a moment later, or blurred. Each is like the first of its group.",
    value: (value) => `${decimal(value)} alike`,
  },
  dark: { title: "Dark", why: "Hardly any part is brighter than black.", value: (value) => `brightest part ${decimal(value)}` },
  bright: { title: "Bright", why: "Hardly any part is darker than white.", value: (value) => `darkest part ${decimal(value)}` },
  blurred: { title: "Blurred", why: "Even the sharpest edges are soft.", value: (value) => `sharpness ${decimal(value, 3)}` },
  blank: { title: "Blank", why: "One colour.", value: (value) => `contrast ${decimal(value, 3)}` },
  tiny: { title: "Tiny", why: "Much smaller than the others.", value: (value) => `${Math.round(value)} pixels` },
  screenshot: { title: "Screenshots", why: "Straight, strong edges on flat areas of few colours.", value: (value) => `${decimal(value)} like a screen` },
  odd: { title: "Odd ones", why: "Far from every other image, by the features.", value: (value) => `${decimal(value, 1)} deviations` },
};

function threshold(label, values, rising, act) {
  const sorted = [...values].sort((one, other) => (rising ? one - other : other - one)); // the least suspicious first
  const [least, most] = [sorted[0], sorted[sorted.length - 1]];
  if (least === most) {
    act(() => true);
    return null;
  }
  const slider = make("input", { type: "range", min: 0, max: sorted.length - 1, value: 0, "aria-label": label });
  const draw = () => {
    const bound = sorted[Number(slider.value)];
    act((value) => (rising ? value >= bound : value <= bound));
  };
  slider.addEventListener("input", draw);
  draw();
  return make("label", { class: "row threshold" }, make("span", { class: "note", text: "Only the clearest" }), slider);
}

// explorer/memory.js
// What survives a reload of the page, for this tab and this run.


const place = ({ talk }, what) => `${talk.state.pictures.version}:${what}`;

function keep(app, what, value) {
  try {
    sessionStorage.setItem(place(app, what), JSON.stringify(value));
  } catch {
    // storage is full or not allowed: a reload starts over
  }
}

function kept(app, what, otherwise) {
  try {
    return { ...otherwise, ...JSON.parse(sessionStorage.getItem(place(app, what)) ?? "{}") };
  } catch {
    return otherwise;
  }
}

// explorer/cleanup.js
// Images that may not belong, by kind: copies beside the best image of their group, others by their figure. What is ticked
// becomes junk in one edit.



const PAGE_OF_GROUPS = 60; // groups drawn at once
const COPIES_SHOWN = 8; // copies shown in a group
const ASK_AGAIN = 2000; // milliseconds until it is asked again whether all images have been looked at

class CleanUpView {
  constructor(app) {
    this.app = app;
    this.kinds = [];
    this.kind = kept(app, "cleanup", { kind: "" }).kind;
    this.asked = 0;
    this.room = PAGE_OF_GROUPS;
    this.spared = new Set();
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

  show(absent) {
    const { kinds } = this;
    const known = kinds.find(({ kind }) => kind === this.kind) ?? kinds[0];
    const isNew = known?.kind !== this.kind || !this.tabs.children.length;
    this.kind = known?.kind ?? "";
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

  get groups() {
    const groups = this.current?.groups ?? [];
    return groups.map(({ best, rows, values }) => ({ best, rows: rows.filter((_, at) => this.passes(values[at])), values: values.filter(this.passes) }))
      .filter(({ rows }) => rows.length);
  }

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

  groupRow({ best, rows, values }) {
    const { app } = this;
    const list = best >= 0 ? [best, ...rows] : rows;
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

  key({ key }) {
    if (key !== "j") return false;
    if (this.chosen.length) this.junk();
    return true;
  }

  enter() {
    /** @type {HTMLElement | null} */ (this.tabs.querySelector("button"))?.focus({ preventScroll: true });
  }
}

const imagesIn = (groups) => groups.reduce((all, { rows }) => all + rows.length, 0);

// parts/palette.js
// Colours and shapes of clusters: ten colours that colour-blind people can tell apart, times five shapes.

const HUES = 10; // --hue-0 to --hue-9 in page.css, for both themes
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];

const isDark = window.matchMedia("screen and (prefers-color-scheme: dark)");

function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  const hues = Array.from({ length: HUES }, (_, hue) => read(`--hue-${hue}`));
  return { hues, ink: read("--ink"), faint: read("--faint"), surface: read("--surface") };
}

const shapeOf = (cluster) => SHAPES[Math.floor(cluster / HUES) % SHAPES.length];

function outline(shape, x, y, r) {
  if (shape === "square") return [[x - r, y - r], [x + r, y - r], [x + r, y + r], [x - r, y + r]];
  if (shape === "triangle") return [[x, y - 1.25 * r], [x + 1.15 * r, y + 0.85 * r], [x - 1.15 * r, y + 0.85 * r]];
  if (shape === "diamond") return [[x, y - 1.35 * r], [x + 1.35 * r, y], [x, y + 1.35 * r], [x - 1.35 * r, y]];
  const [a, b] = [0.45 * r, 1.25 * r];
  return [
    [x - a, y - b], [x + a, y - b], [x + a, y - a], [x + b, y - a], [x + b, y + a], [x + a, y + a],
    [x + a, y + b], [x - a, y + b], [x - a, y + a], [x - b, y + a], [x - b, y - a], [x - a, y - a],
  ];
}

function trace(context, shape, x, y, r) {
  context.beginPath();
  if (shape === "circle") {
    context.arc(x, y, r, 0, 2 * Math.PI);
    return;
  }
  outline(shape, x, y, r).forEach(([px, py], at) => (at ? context.lineTo(px, py) : context.moveTo(px, py)));
  context.closePath();
}

function swatch(cluster) {
  const [shape, hue] = [shapeOf(cluster), `hue-${cluster % HUES}`];
  const mark = shape === "circle" ? makeSvg("circle", { class: hue, cx: 7, cy: 7, r: 5 })
    : makeSvg("polygon", { class: hue, points: outline(shape, 7, 7, 4.4).map((point) => point.join(",")).join(" ") });
  return makeSvg("svg", { class: "swatch", viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" }, mark);
}

// parts/cards.js
// Clusters as cards: sorted and filtered, drawn a few dozen at a time.


const CARDS_AT_ONCE = 24;

const ORDERS = {
  size: { text: "Size", first: -1, described: ["smallest first", "largest first"], value: (cluster) => cluster.size },
  confidence: {
    text: "Confidence", first: 1, described: ["least certain first", "most certain first"],
    value: (cluster, direction) => cluster.confidence ?? 2 * direction, // empty clusters come last in both orders
  },
  name: { text: "Name", first: 1, described: ["from the first", "from the last"], value: null },
};

class Cards {
  constructor(clusters, { card, title, filterFrom }) {
    this.clusters = clusters;
    this.card = card;
    this.title = title;
    this.order = "size";
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

  filter(text) {
    this.wanted = text.trim().toLowerCase();
    this.draw();
  }

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
    const byName = (one, other) => this.title(one).localeCompare(this.title(other), "en", { numeric: true });
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

function clusterCard(cluster, { title, corner, facts, empty, meters = [], galleries, actions }) {
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

function meter(text, value) {
  const bar = make("span", { class: "meter-bar" });
  bar.style.width = `${100 * (value ?? 0)}%`;
  return make("p", { class: "meter" },
    make("span", { class: "note", text }),
    make("span", { class: "meter-track", "aria-hidden": "true" }, bar),
    make("span", { class: "figure", text: decimal(value) }));
}

function stepCards(place, key) {
  const cards = [...place.querySelectorAll(".card")];
  const at = cards.findIndex((card) => card.contains(document.activeElement));
  const top = (card) => card.getBoundingClientRect().top;
  const columns = Math.max(1, cards.filter((card) => top(card) === top(cards[0])).length);
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  const next = cards[at < 0 ? 0 : at + steps[key]]?.querySelector("a");
  next?.focus();
  return Boolean(next);
}

// explorer/clusters.js
// The view of all clusters: cards, as in the report, to open, rename and merge.


class ClustersView {
  constructor(app) {
    this.app = app;
    this.tops = new Map();
    this.bar = make("div", { class: "row chosen", role: "group", "aria-label": "Chosen clusters" });
    this.body = make("section", { "aria-labelledby": "title" }, make("h2", { id: "title", class: "title", text: "Clusters" }), this.bar);
    this.cards = new Cards(app.talk.state.clusters, { card: (cluster) => this.card(cluster), title: ({ name }) => name, filterFrom: 2 });
    this.body.append(this.cards.body);
  }

  card(cluster) {
    const { app } = this;
    const { id, name, size, share } = cluster;
    const chosen = make("input", { type: "checkbox", "aria-label": `Choose ${name}` });
    chosen.addEventListener("change", () => app.choose(id, chosen.checked));
    chosen.checked = app.chosen.has(id);
    const rename = button("Rename", () => app.corrections.rename(id), { class: "quiet", "aria-label": `Rename ${name}` });
    const split = button("Split", () => app.corrections.split(id), { class: "quiet", "aria-label": `Split ${name}` });
    return clusterCard(cluster, {
      title: make("a", { href: `#cluster/${id}`, text: name }),
      corner: chosen,
      facts: [plural(size, app.talk.one), percent(share)],
      empty: "Nothing is here.",
      galleries: [
        [null, this.gallery(cluster.typical, "typical", "a typical")],
        ["Least certain", cluster.doubtful.length ? this.gallery(cluster.doubtful, "doubtful", "a doubtful") : null],
      ],
      actions: make("p", { class: "row deeds" }, rename, split),
    });
  }

  gallery(rows, kind, which) {
    const { pictures, talk, viewer } = this.app;
    return gallery(rows.map((row, at) =>
      pictures.thumb(row, `Open ${which} ${talk.one}, number ${row}`, () => viewer.open(rows, at))), kind);
  }

  enter(cluster) {
    this.refresh();
    const own = `cluster-${cluster}`;
    const seen = [own, ...this.tops.keys()].find((id) => this.tops.has(id) && document.getElementById(id));
    const top = seen && this.tops.get(seen);
    if (top) window.scrollBy({ top: find(seen).getBoundingClientRect().top - top, behavior: "instant" });
    if (cluster === undefined || !this.app.talk.byId.has(cluster)) return;
    if (!document.getElementById(own)) this.cards.reveal(cluster);
    const link = find(own).querySelector("a");
    link?.focus({ preventScroll: true });
    link?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  leave() {
    this.tops.clear();
    for (const card of this.body.querySelectorAll(".card")) {
      const { top } = card.getBoundingClientRect();
      if (top > 0 && top < window.innerHeight) this.tops.set(card.id, top);
    }
  }

  refresh() {
    for (const id of this.app.chosen) if (!this.app.talk.byId.has(id)) this.app.chosen.delete(id);
    this.cards.clusters = this.app.talk.state.clusters;
    const focused = document.activeElement?.closest(".card")?.id;
    this.cards.draw();
    if (focused) document.getElementById(focused)?.querySelector("a")?.focus({ preventScroll: true });
    this.drawBar();
  }

  drawBar() {
    const { app } = this;
    const ids = [...app.chosen];
    this.bar.classList.toggle("none", !ids.length); // it keeps its space, so that nothing moves when the first card is ticked
    this.bar.replaceChildren(...(!ids.length ? [note("Tick clusters to merge them.")] : [
      make("span", { text: `${plural(ids.length, "cluster")} chosen` }),
      button(ids.length > 1 ? "Merge" : "Merge into…", () => app.corrections.merge(ids), { class: "main" }),
      button("None", () => this.chooseNone(), { "aria-label": "Choose none" })]));
  }

  chooseNone() {
    this.app.chosen.clear();
    this.refresh();
    find("main").focus({ preventScroll: true }); // the button has gone
  }

  get results() {
    return /** @type {HTMLElement | null} */ (this.body.querySelector(".card a"));
  }

  get current() {
    const card = /** @type {HTMLElement | null} */ (document.activeElement?.closest(".card"));
    return card ? Number(card.dataset.id) : null;
  }

  key(event) {
    const { corrections, chosen } = this.app;
    const { current } = this;
    const { tagName } = /** @type {Element} */ (event.target);
    if (event.key === "m") corrections.merge(chosen.size ? [...chosen] : current === null ? [] : [current]);
    else if (event.key === "r" && current !== null) corrections.rename(current);
    else if (event.key === "s" && current !== null) corrections.split(current);
    else if (event.key === " " && current !== null && tagName !== "INPUT" && tagName !== "BUTTON") {
      this.app.choose(current, !chosen.has(current));
      this.refresh();
    } else if (event.key === "/") this.cards.field.focus();
    else if (event.key.startsWith("Arrow") && tagName !== "INPUT") return stepCards(this.body, event.key);
    else return false;
    return true;
  }
}

// explorer/corrections.js
// The corrections. Each asks for what it needs, makes one edit, and reports it.


const KEYS = [
  ["arrow keys", "go through the images"], ["space", "select or leave out the image"], ["shift with arrow keys or click", "select a range"],
  ["ctrl+A", "select all"], ["escape", "select none; in a cluster: back to all clusters"], ["enter", "open the image, or the cluster"],
  ["r", "rename the cluster"], ["m", "merge clusters; with images selected: move them"], ["n", "put the selected images into a new cluster"],
  ["c", "these are right: the selected images become examples"],
  ["l", "more like these: grow the selected images, fifty at a time, from the whole set"],
  ["a", "accept all proposals"], ["y", "accept the proposed group"], ["x", "refuse the proposed group, or the selected images of it"],
  ["1 to 5", "teach: it belongs to this cluster"], ["0", "teach: to none of these"],
  ["s", "split the cluster, or split off the selected images"], ["j", "mark as junk, or take out of the junk"],
  ["u", "undo"], ["shift+U", "redo"], ["/", "find"], ["?", "this list"],
];

const ASKED_ABOVE = 50; // images that are marked as junk without a question

class Corrections {
  constructor(app) {
    this.app = app;
  }

  get talk() {
    return this.app.talk;
  }

  async edit(kind, fields, done) {
    await this.talk.edit(kind, fields);
    this.app.tell(done);
  }

  async now(kind, fields, done) {
    await this.done(kind, fields, done);
  }

  async done(kind, fields, done) {
    try {
      await this.edit(kind, fields, done);
    } catch (error) {
      this.app.tell(messageOf(error));
      return false;
    }
    return true;
  }

  images(rows) {
    return plural(rows.length, this.talk.one);
  }

  ofImages(from, junk) {
    const action = (key, text, act) => ({ key, text, act });
    return [
      action("m", "Move…", (rows) => this.move(rows, from)),
      action("n", "New cluster…", (rows) => this.moveToNew(rows)),
      action("c", "These are right", (rows) => this.confirm(rows)),
      ...(from === null ? [] : [action("s", "Split off…", (rows) => this.splitOff(from, rows))]),
      junk ? action("j", "Not junk", (rows) => this.unjunk(rows)) : action("j", "Junk", (rows) => this.junk(rows)),
    ];
  }

  async rename(id) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return undefined;
    const name = textInput(cluster.named ? cluster.name : "");
    return ask({
      title: `Rename ${cluster.name}`, fields: [field("Name", name)], action: "Rename",
      act: () => this.edit("rename", { cluster: id, name: name.value.trim() }, `Renamed to ${name.value.trim()}.`),
    });
  }

  async merge(ids) {
    const known = ids.map((id) => this.talk.byId.get(id)).filter((one) => one !== undefined);
    if (known.length === 1) return this.mergeInto(known[0]);
    if (!known.length) return this.app.tell("Tick the clusters to merge first.");
    const largest = [...known].sort((one, other) => Number(other.named) - Number(one.named) || other.size - one.size);
    const name = textInput(largest[0].named ? largest[0].name : "", { placeholder: largest[0].name });
    return ask({
      title: `Merge ${known.length} clusters`, text: largest.map((one) => one.name).join(", "), action: "Merge",
      fields: [field("Name", name)],
      act: async () => {
        const clusters = largest.map((one) => one.id);
        await this.edit("merge", { clusters, name: name.value.trim() || undefined }, `Merged ${known.length} clusters.`);
        this.app.chosen.clear();
        return () => this.app.go("clusters", clusters[0]);
      },
    });
  }

  async mergeInto(cluster) {
    const others = this.talk.state.clusters.filter(({ id }) => id !== cluster.id);
    if (!others.length) return this.app.tell("There is no other cluster to merge with.");
    const picker = clusterPicker(others, "Cluster to merge with");
    return ask({
      title: `Merge ${cluster.name} into another`, fields: picker.body, action: "Merge",
      act: async () => {
        const into = picker.value();
        await this.edit("merge", { clusters: [into, cluster.id] }, `Merged into ${this.talk.nameOf(into)}.`);
        return () => this.app.go(`cluster/${into}`);
      },
    });
  }

  async split(id) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return undefined;
    const many = make("input", { type: "number", min: 2, max: Math.max(2, Math.min(100, cluster.size)), value: 2, required: true, "data-first": true });
    return ask({
      title: `Split ${cluster.name}`, text: "By what the network sees in the images (k-means). The parts are new clusters.",
      fields: [field("Parts", many)], action: "Split",
      act: async () => {
        const before = this.talk.byId;
        await this.talk.edit("split", { cluster: id, parts: Number(many.value) });
        const fresh = this.talk.state.clusters.filter((one) => !before.has(one.id));
        const parts = fresh.slice(0, 6).map((one) => `${one.name} (${count(one.size)})`);
        this.app.tell(`Split ${cluster.name}: ${parts.join("; ")}${fresh.length > 6 ? " …" : "."}`);
        return () => this.app.go("clusters", fresh[0].id);
      },
    });
  }

  async splitOff(id, rows) {
    const cluster = this.talk.byId.get(id);
    if (!cluster) return undefined;
    const { name: now, named } = cluster;
    const name = textInput("", { placeholder: named ? `${now} 2` : `${id}, part 2` });
    return ask({
      title: `Split off ${this.images(rows)}`, text: "New images will go to whichever part is nearer.", action: "Split off",
      fields: [field("Name of the new cluster", name)],
      act: () => this.edit("split_off", { cluster: id, rows, name: name.value.trim() || undefined }, `Split off ${this.images(rows)}.`),
    });
  }

  async move(rows, from = null) {
    const others = this.talk.state.clusters.filter(({ id }) => id !== from);
    if (!others.length) return this.moveToNew(rows);
    const picker = clusterPicker(others, "Cluster to move to");
    return ask({
      title: `Move ${this.images(rows)}`, fields: picker.body, action: "Move",
      act: async () => {
        const to = picker.value();
        return this.edit("move", { rows, to }, `Moved ${this.images(rows)} to ${this.talk.nameOf(to)}.`);
      },
    });
  }

  async moveToNew(rows) {
    const name = textInput("", { placeholder: "a number, if left empty" });
    return ask({
      title: `New cluster of ${this.images(rows)}`, fields: [field("Name", name)], action: "Make it",
      act: () => this.edit("move", { rows, name: name.value.trim() || undefined }, `A new cluster has ${this.images(rows)}.`),
    });
  }

  confirm(rows) {
    return this.now("confirm", { rows }, `${this.images(rows)} confirmed: no computation moves ${rows.length === 1 ? "it" : "them"}.`);
  }

  async accept(groups, images) {
    const fields = groups ? { groups: groups.map(({ source, to }) => [source, to]) } : {};
    return this.done("accept", fields, `Moved ${plural(images, this.talk.one)} as proposed. U takes it back.`);
  }

  async refuse({ source, to, size }) {
    return this.done("refuse", { groups: [[source, to]] }, `${plural(size, this.talk.one)} will not be proposed for ${this.talk.nameOf(to)} again.`);
  }

  refuseRows(rows, to) {
    return this.done("refuse", { rows, to: [to] }, `${this.images(rows)} will not be proposed for ${this.talk.nameOf(to)} again.`);
  }

  junk(rows) {
    const done = `${this.images(rows)} marked as junk. U takes it back.`;
    if (rows.length <= ASKED_ABOVE) return this.now("junk", { rows }, done);
    return ask({
      title: `Mark ${this.images(rows)} as junk?`, text: "They leave their clusters, tables and folders; no file is deleted.", action: "Junk",
      act: () => this.edit("junk", { rows }, done),
    });
  }

  unjunk(rows) {
    return this.now("unjunk", { rows }, `${this.images(rows)} back in place.`);
  }

  undo() {
    return this.step("undo", "Undone");
  }

  redo() {
    return this.step("redo", "Done again");
  }

  step(kind, done) {
    return this.talk.inTurn(async () => {
      const what = this.talk.state[kind];
      if (what) await this.talk.send(kind, {});
      this.app.tell(what ? `${done}: ${what}.` : `There is nothing to ${kind}.`);
    }).catch((error) => this.app.tell(messageOf(error)));
  }
}

function clusterPicker(clusters, label) {
  const list = make("select", { size: 7, "aria-label": label });
  const narrow = make("input", { type: "search", autocomplete: "off", placeholder: "Find a cluster", "aria-label": "Find a cluster", "data-first": true });
  const fill = () => {
    const wanted = narrow.value.trim().toLowerCase();
    const found = clusters.filter(({ name, id }) => `${name} ${id}`.toLowerCase().includes(wanted));
    list.replaceChildren(...found.map(({ id, name, size }) => make("option", { value: id, text: `${name} (${count(size)})` })));
    if (list.options.length) list.selectedIndex = 0;
  };
  narrow.addEventListener("input", fill);
  narrow.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    list.selectedIndex = Math.max(0, Math.min(list.options.length - 1, list.selectedIndex + step));
  });
  fill();
  const value = () => {
    if (list.selectedIndex < 0) throw new Refusal("Choose a cluster.");
    return Number(list.value);
  };
  return { body: [narrow, list], value };
}

// explorer/drop.js
// Files dropped on the page: their cluster, and the most similar images.


const MOST_FILES = 20;
const MOST_MEGABYTES = 40;

class Drops {
  constructor(app) {
    this.app = app;
    this.input = make("input", { type: "file", multiple: true, accept: "image/*", class: "offstage", tabindex: "-1", "aria-label": "Images to look up" });
    this.input.addEventListener("change", () => {
      const chosen = [...(this.input.files ?? [])];
      this.input.value = "";
      this.look(chosen);
    });
    this.button = button("Look up images…", () => this.input.click());
    document.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.look([...event.dataTransfer.files]);
    });
  }

  async look(files) {
    if (!files.length) return;
    const list = make("div", {});
    const left = files.length > MOST_FILES ? note(`The first ${MOST_FILES} of ${files.length} files.`) : null;
    const dialog = make("dialog", { class: "viewer", "aria-labelledby": "asked" }, make("h2", { id: "asked", text: "Where they belong" }), left, list,
      note("Nothing was kept: twincluster update adds images to a run."));
    dialog.append(button("Close", () => dialog.close(), { "data-first": true }));
    showDialog(dialog);
    for (const file of files.slice(0, MOST_FILES)) {
      const place = make("article", { class: "dropped" }, note(`${file.name} …`));
      list.append(place);
      place.replaceChildren(...(await this.one(file, dialog)));
    }
  }

  async one(file, dialog) {
    const { app } = this;
    if (file.size > MOST_MEGABYTES * 1e6) return [note(`${file.name}: larger than ${MOST_MEGABYTES} MB.`)];
    let body;
    try {
      body = await file.arrayBuffer();
    } catch {
      return [note(`${file.name}: cannot be read. Drop files, not folders.`)];
    }
    try {
      const { cluster, confidence, neighbours, picture } = await app.talk.ask("/api/drop", { method: "POST", headers: { "content-type": "application/octet-stream" }, body });
      const name = make("a", { href: `#cluster/${cluster}`, text: app.talk.nameOf(cluster), onclick: () => dialog.close() }); // the page may already show this cluster
      return [make("img", { class: "picture", src: picture, alt: file.name }),
        make("div", {}, make("h3", {}, swatch(cluster), name), note(`${file.name} · confidence ${decimal(confidence)}`),
          app.viewer.neighbours(neighbours))];
    } catch (error) {
      return [note(`${file.name}: ${messageOf(error)}`)];
    }
  }
}

// explorer/lessons.js
// What the teacher has learned from the corrections, polled until it is about the newest edit.


const SOON = 200; // milliseconds between two requests while a lesson is being computed
const LATER = 1500; // while the features are prepared, or the server does not answer

class Lessons {
  constructor(app) {
    this.app = app;
    this.now = { stage: "preparing", absent: "", number: null };
    this.timer = 0;
    this.asking = false;
  }

  get moves() {
    return this.now.moves ?? 0;
  }

  get fresh() {
    return this.now.stage === "ready" && this.now.number === this.app.talk.state.number;
  }

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

const wouldMove = (moves, one = "image") => `${plural(moves, one)} would move`;

function whyNot(lesson) {
  if (lesson.stage === "ready") return "";
  return lesson.absent ? `Nothing can be learned here: ${lesson.absent}.` : "Preparing: the images are being compared with each other …";
}

function way({ talk }, source, to) {
  const mark = (id) => (id < 0 ? null : swatch(id));
  return [mark(source), make("span", { text: talk.nameOf(source) }), make("span", { text: "→", class: "arrow", "aria-label": "to" }),
    mark(to), make("span", { text: talk.nameOf(to) })];
}

const whole = (share) => `${count(Math.round(100 * share))}%`;

// parts/grid.js
// A grid of any number of images. Only the tiles in sight exist: they come and go as one scrolls.

const TILE = 116; // desired width of a tile in pixels
const CALM = 70; // milliseconds a tile must be visible before its picture is requested
const AT_ONCE = 500; // images described by one call


class ImageGrid {
  constructor(uses) {
    this.uses = uses;
    this.rows = [];
    this.selected = new Set();
    this.active = -1; // position of the image with the keyboard focus
    this.anchor = 0; // start of a range selection
    this.tiles = new Map();
    this.known = new Map();
    this.columns = 1;
    this.cell = TILE;
    this.waiting = false;
    this.calm = 0;
    this.space = make("div", { class: "grid-space", role: "presentation" });
    this.body = make("div", {
      class: "grid", role: "listbox", tabindex: "0", "aria-multiselectable": "true",
      "aria-label": "Images. Arrow keys go through them, space selects, enter opens.",
    }, this.space);
    this.body.addEventListener("scroll", () => this.soon(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("focus", () => { if (this.active < 0 && this.rows.length) this.go(0, false); });
    this.space.addEventListener("click", (event) => this.click(event));
    this.space.addEventListener("dblclick", (event) => { if (this.at(event) >= 0) uses.open(this.at(event)); });
    new ResizeObserver(() => this.measure()).observe(this.body);
  }

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
    if (!width) { // the grid is hidden, and its images may be gone
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

  async fill() {
    const empty = [...this.tiles].filter(([, tile]) => !tile.firstChild).map(([at, tile]) => ({ row: this.rows[at], tile }));
    for (const { row, tile } of empty) {
      const picture = this.uses.picture(row);
      tile.append(picture ?? make("span", { class: "tile-name", text: String(row) }));
      if (!picture) continue;
      picture.loading = "eager";
      picture.addEventListener("error", () => tile.replaceChildren(make("span", { class: "tile-name", text: this.known.get(row) ?? String(row) })));
    }
    const unknown = [...new Set(empty.map(({ row }) => row))].slice(0, AT_ONCE);
    if (!unknown.length) return;
    for (const [row, text] of await this.uses.describe(unknown).catch(() => [])) this.known.set(row, text);
    for (const { row, tile } of empty) {
      const text = this.known.get(row);
      if (!text) continue;
      tile.setAttribute("aria-label", text);
      tile.title = text;
      const name = tile.querySelector(".tile-name");
      if (name) name.textContent = text;
    }
  }

  at(event) {
    const tile = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest(".tile"));
    return tile ? Number(tile.dataset.at) : -1;
  }

  click(event) {
    const at = this.at(event);
    if (at < 0) return;
    const row = this.rows[at];
    if (event.shiftKey) this.range(at, event.ctrlKey || event.metaKey);
    else if (this.uses.toggles || event.ctrlKey || event.metaKey || /** @type {PointerEvent} */ (event).pointerType === "touch") this.toggle(row);
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

  mark(active) {
    this.active = active;
    for (const [at, tile] of this.tiles) {
      tile.setAttribute("aria-selected", String(this.selected.has(this.rows[at])));
      tile.classList.toggle("active", at === active);
    }
    if (active >= 0) this.body.setAttribute("aria-activedescendant", `tile-${active}`);
    else this.body.removeAttribute("aria-activedescendant");
    this.uses.changed();
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
    else if (key === "Enter" && this.active >= 0) this.uses.open(this.active);
    else if (key === "Escape" && this.selected.size) this.selectNone();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

// explorer/lists.js
// The images of one cluster, of all clusters, or of the junk: a grid, and the actions on selected images.



const ORDER_NAMES = [["typical", "Typical first"], ["doubtful", "Doubtful first"], ["source", "As in the source"]];
const CLUSTER_KEYS = ["m", "s"]; // act on the cluster if no image is selected

class SelectionGrid {
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.grid = new ImageGrid({
      open: (at) => app.viewer.open(this.grid.rows, at),
      changed: () => this.draw(),
      picture: (row) => (place.of === "unreadable" ? null : app.pictures.element(row)),
      describe: (rows) => this.describe(rows),
      toggles: place.toggles,
    });
    this.text = make("span", { role: "status", class: "figure" });
    this.from = ["cluster", "group"].includes(place.of) && (place.cluster ?? -1) >= 0 ? place.cluster ?? null : null;
    const junk = place.of === "junk" || (place.of === "group" && this.from === null);
    this.actions = place.of === "unreadable" ? [] : [
      ...(place.extra ?? []), ...(place.like ? [{ key: "l", text: "More like these", act: place.like }] : []), ...app.corrections.ofImages(this.from, junk)];
    this.open = button("Open", () => app.viewer.open(this.grid.rows, Math.max(0, this.grid.active)), { class: "needs" });
    this.bar = make("div", { class: "row chosen", role: "group", "aria-label": "Selected images" }, this.text,
      place.of === "unreadable" ? [] : [
        button("Select all", () => this.grid.selectAll()), button("None", () => this.grid.selectNone(), { class: "needs" }), this.open,
        this.actions.map(({ key, text, act }) => button(text, () => act(this.acted), { class: "needs", "aria-keyshortcuts": key }))]);
    this.draw();
  }

  get rows() {
    return [...this.grid.selected];
  }

  get acted() {
    return this.place.taken?.() ?? this.rows;
  }

  draw() {
    const { grid, place, app } = this;
    const many = grid.selected.size;
    this.text.textContent = many ? `${count(many)} of ${count(grid.rows.length)} selected`
      : plural(grid.rows.length, place.of === "unreadable" ? "file" : app.talk.one);
    for (const one of this.bar.querySelectorAll("button")) if (one.classList.contains("needs")) one.disabled = !many;
    this.open.disabled = grid.active < 0;
  }

  key({ key }) {
    const rows = this.acted;
    const action = this.actions.find((one) => one.key === key);
    if (!action || (!rows.length && this.from !== null && CLUSTER_KEYS.includes(key))) return false;
    if (rows.length) action.act(rows);
    else this.app.tell(`Select ${this.app.talk.state.run.kind} first: click them, or press space.`);
    return true;
  }

  async describe(rows) {
    const { talk } = this.app;
    const found = await talk.ask(`/api/details?rows=${rows.join(",")}`);
    return found.map(({ row, path, cluster, confidence, status, example }) =>
      [row, `${path}, ${cluster === -1 ? status : `${talk.nameOf(cluster)}, ${example ? "placed by you" : `confidence ${decimal(confidence)}`}`}`]);
  }
}

class ListView {
  constructor(app, of, cluster = -1) {
    this.app = app;
    this.of = of;
    this.cluster = cluster;
    this.usual = of === "all" ? "source" : "typical";
    this.order = this.usual;
    this.path = "";
    this.asked = 0;
    this.typing = 0;
    this.list = new SelectionGrid(app, { of, cluster, like: of === "unreadable" ? null : (rows) => app.showLike(rows) });
    this.grid = this.list.grid;
    this.heading = make("h2", { id: "title", class: "title" });
    this.empty = note("");
    this.search = make("input", { type: "search", placeholder: "Find by path", "aria-label": "Show only images whose path has this in it" });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => { this.path = this.search.value.trim(); this.refresh(); }, 200);
    });
    this.orders = choices("Order", ORDER_NAMES, this.usual, (name) => this.arrange(name));
    this.body = make("section", { class: "list", "aria-labelledby": "title" }, make("div", { class: "row list-top" }, this.heading, this.deeds()),
      make("div", { class: "row tools" }, this.search, of === "unreadable" ? null : this.orders), this.list.bar, this.empty, this.grid.body);
    this.arrange(this.usual);
  }

  deeds() {
    if (this.of !== "cluster") return null;
    const { corrections } = this.app;
    const deed = (text, key, act) => button(text, act, { "aria-keyshortcuts": key });
    return make("div", { class: "row" }, deed("Rename", "r", () => corrections.rename(this.cluster)),
      deed("Merge…", "m", () => corrections.merge([this.cluster])), deed("Split…", "s", () => corrections.split(this.cluster)));
  }

  arrange(order) {
    this.order = order;
    press(this.orders, order);
    return this.refresh();
  }

  async refresh() {
    const { talk } = this.app;
    if (this.of === "cluster" && !talk.byId.has(this.cluster)) { // it was merged or split
      this.app.go("clusters");
      return false;
    }
    const titles = { all: `All ${talk.state.run.kind}`, junk: "Junk", unreadable: "Unreadable files", cluster: talk.nameOf(this.cluster) };
    this.heading.replaceChildren(...(this.of === "cluster" ? [swatch(this.cluster)] : []), titles[this.of]);
    const turn = ++this.asked;
    const query = new URLSearchParams({ of: this.of, cluster: String(this.cluster), order: this.order, path: this.path });
    try {
      const { rows } = await talk.ask(`/api/rows?${query}`);
      if (turn !== this.asked) return true;
      this.empty.textContent = rows.length ? "" : this.path ? "No path here has this in it." : "Nothing is here.";
      this.empty.hidden = Boolean(rows.length);
      this.grid.show(rows);
      this.list.draw();
      if (document.activeElement === document.body) this.enter(); // it was empty and has images again
    } catch (error) {
      this.app.tell(messageOf(error));
      return false;
    }
    return true;
  }

  key(event) {
    const { corrections } = this.app;
    if (this.list.key(event)) return true;
    if (event.key === "/") this.search.focus();
    else if (event.key === "Escape" && !this.grid.selected.size) this.app.go("clusters");
    else if (this.of !== "cluster") return false;
    else if (event.key === "r") corrections.rename(this.cluster);
    else if (event.key === "m") corrections.merge([this.cluster]);
    else if (event.key === "s") corrections.split(this.cluster);
    else return false;
    return true;
  }

  get results() {
    return this.grid.body;
  }

  enter() {
    this.results.focus({ preventScroll: true });
  }
}

// explorer/like.js
// A growing set of images: it offers the fifty most similar ones; untick the wrong ones, take the rest, repeat.


const SHOWN = 16; // examples shown

class LikeView {
  constructor(app, like) {
    this.app = app;
    const before = like.length ? null : kept(app, "like", { like: [], unlike: [] });
    this.like = before?.like ?? like;
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

  get taken() {
    return [...new Set([...this.like, ...this.list.rows])];
  }

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

  key(event) {
    if (event.key === "l") this.step();
    else if (event.key === "Escape") this.app.go("clusters");
    else return this.list.key(event);
    return true;
  }
}

// parts/scatter.js
// A map of images: points on a canvas to zoom, pan, hover and select with a lasso, with buttons, legend and tooltip.



const LEGEND = 36; // clusters in the legend
const GRID = 9999; // coordinates of the data run from 0 to this
const CLOSEST = 60; // largest zoom
const REACH = 14; // pixels within which a click selects a point
const FRESH = 400; // milliseconds after which the wheel starts a new gesture, instead of scrolling the page

class ScatterPanel {
  constructor(points, pictures, takeText, uses) {
    this.uses = uses;
    this.map = new ScatterMap(points, pictures, {
      hover: (point) => this.point(point),
      open: (point) => uses.open(this.map.points.image[point]),
      lasso: (taken) => uses.take(taken, "inside the line"),
    });
    this.tip = make("div", { class: "tip", hidden: true });
    this.legend = new Legend(this.map);
    const tools = mapTools(this.map, Boolean(pictures), takeText, (taken) => uses.take(taken, "in view"));
    this.parts = [tools, make("div", { class: "map-frame" }, this.map.canvas, this.tip), this.legend.body];
  }

  choose(points) {
    this.map.chosen = points.length ? points : null;
    this.map.draw();
  }

  point(point) {
    const { map, tip } = this;
    tip.hidden = point < 0;
    if (point < 0) return;
    tip.replaceChildren(...this.uses.tip(point).filter((one) => one !== null && one !== undefined));
    const [x, y] = map.at(point);
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(map.width - width - 4, x + 14))}px`;
    tip.style.top = `${y + height + 20 < map.height ? y + 14 : Math.max(4, y - height - 14)}px`;
  }
}

function mapSentence({ note: which, method, meaning }, advice) {
  return `${capitalised(`${which}, placed by ${method}: ${meaning}.`)} ${advice}`;
}

function mapTools(map, hasPictures, takeText, take) {
  const mode = choices("What dragging does", [["move", "Move"], ["select", "Select"]], "move", (name) => {
    map.mode = map.canvas.dataset.mode = name;
    press(mode, name);
  });
  const zoom = make("div", { class: "choices", role: "group", "aria-label": "Zoom" },
    button("+", () => map.zoom(1.5), { "aria-label": "Zoom in" }),
    button("−", () => map.zoom(1 / 1.5), { "aria-label": "Zoom out" }),
    button("Reset", () => map.reset(), { "aria-label": "Reset: show the whole map" }));
  const pictures = button("Pictures", () => {
    map.pictures = !map.pictures;
    pictures.setAttribute("aria-pressed", String(map.pictures));
    map.draw();
  }, { "aria-pressed": "false" });
  const inView = button(takeText, () => take(map.visible()));
  return make("div", { class: "row tools" }, mode, zoom, hasPictures ? pictures : null, inView);
}

class Legend {
  constructor(map) {
    this.map = map;
    this.keys = [];
    this.body = make("div", { class: "legend", role: "group", "aria-label": "Show one cluster on the map" });
  }

  draw(clusters, nameOf, elsewhere) {
    const focused = this.keys.find((key) => key === document.activeElement)?.dataset.id;
    const sorted = clusters.filter((cluster) => cluster.size).sort((one, other) => other.size - one.size);
    this.keys = sorted.slice(0, LEGEND).map((cluster) => {
      const { id } = cluster;
      const key = button(null, () => this.focus(this.map.focus === id ? null : id), { "data-id": id });
      key.append(swatch(id), make("span", { text: nameOf(cluster) }));
      return key;
    });
    const rest = sorted.length - LEGEND;
    const more = rest > 0 ? make("span", { class: "note", text: `and ${plural(rest, "more cluster")}; ${elsewhere}` }) : null;
    this.body.replaceChildren(...this.keys, ...(more ? [more] : []));
    this.keys.find((key) => key.dataset.id === focused)?.focus();
    this.focus(clusters.some(({ id }) => id === this.map.focus) ? this.map.focus : null);
  }

  focus(id) {
    this.map.focus = id;
    for (const key of this.keys) key.setAttribute("aria-pressed", String(Number(key.dataset.id) === id));
    this.map.draw();
  }
}

class ScatterMap {
  constructor(points, drawable, uses) {
    this.points = points;
    this.drawable = drawable;
    this.uses = uses;
    this.mode = "move";
    this.pictures = false; // whether pictures are drawn instead of shapes
    this.focus = null;
    this.chosen = null;
    this.drawn = [];
    this.width = this.height = 0;
    this.waiting = this.moved = false;
    const keys = "Map of the images. Arrow keys move, plus and minus zoom, 0 shows all.";
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": keys });
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.view = { scale: 1, x: 0, y: 0 };
    this.fingers = new Map();
    this.start = [0, 0];
    this.scrolled = -FRESH; // the wheel may zoom right after the page was opened
    this.listen();
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    isDark.addEventListener("change", () => this.draw());
  }

  resize() {
    const box = this.canvas.getBoundingClientRect();
    if (!box.width) return;
    const dense = window.devicePixelRatio || 1;
    [this.width, this.height] = [box.width, box.height];
    [this.canvas.width, this.canvas.height] = [Math.round(box.width * dense), Math.round(box.height * dense)];
    this.context.setTransform(dense, 0, 0, dense, 0, 0);
    this.draw();
  }

  at(i) {
    const side = Math.min(this.width, this.height) - 40;
    const along = (whole) => Math.min(1.5 * side, whole - 40); // screens are seldom square, and the axes have no meaning
    return [
      this.width / 2 + (this.points.x[i] / GRID - 0.5) * along(this.width) * this.view.scale + this.view.x,
      this.height / 2 + (this.points.y[i] / GRID - 0.5) * along(this.height) * this.view.scale + this.view.y,
    ];
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(CLOSEST, Math.max(0.7, this.view.scale * factor));
    const real = scale / this.view.scale;
    this.view.x = (this.view.x + this.width / 2 - x) * real + x - this.width / 2;
    this.view.y = (this.view.y + this.height / 2 - y) * real + y - this.height / 2;
    this.view.scale = scale;
    this.draw();
  }

  pan(x, y) {
    this.view.x += x;
    this.view.y += y;
    this.draw();
  }

  reset() {
    this.view = { scale: 1, x: 0, y: 0 };
    this.draw();
  }

  visible() {
    return this.points.image.map((_, i) => i).filter((i) => {
      const [x, y] = this.at(i);
      return this.counts(i) && x >= 0 && y >= 0 && x <= this.width && y <= this.height;
    });
  }

  counts(i) {
    return this.focus === null || this.points.cluster[i] === this.focus;
  }

  nearest(x, y) {
    const reach = this.pictures ? Math.max(REACH, this.pictureSide() / 2) : REACH;
    let [best, least] = [-1, reach * reach];
    for (let i = 0; i < this.points.x.length; i++) {
      if (!this.counts(i)) continue;
      const [px, py] = this.at(i);
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least) [best, least] = [i, far];
    }
    return best;
  }

  pictureSide() {
    return Math.min(72, 18 * Math.sqrt(this.view.scale));
  }

  draw() {
    if (this.waiting || !this.width) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const { context } = this;
    const { hues, ink, faint, surface } = themeColours();
    context.clearRect(0, 0, this.width, this.height);
    const radius = Math.min(7, (this.points.x.length > 1200 ? 3 : 4) * Math.sqrt(Math.sqrt(this.view.scale)));
    const chosen = this.chosen && new Set(this.chosen);
    const order = this.points.image.map((_, i) => i).sort((one, other) => Number(this.counts(one)) - Number(this.counts(other)));
    for (const i of order) {
      const [x, y] = this.at(i);
      if (x < -40 || y < -40 || x > this.width + 40 || y > this.height + 40) continue;
      const cluster = this.points.cluster[i];
      const bright = this.counts(i) && (!chosen || chosen.has(i));
      const side = this.pictureSide();
      context.globalAlpha = bright ? 1 : 0.5;
      context.fillStyle = bright ? hues[cluster % HUES] : faint;
      const [left, top] = [x - side / 2, y - side / 2];
      const again = () => this.draw();
      if (this.pictures && bright && this.drawable?.draw(context, this.points.image[i], left, top, side, again)) {
        context.lineWidth = 2;
        context.strokeStyle = hues[cluster % HUES];
        context.strokeRect(left, top, side, side);
        continue;
      }
      trace(context, shapeOf(cluster), x, y, bright ? radius : radius * 0.7);
      context.fill();
      context.lineWidth = 0.75;
      context.strokeStyle = surface;
      context.stroke();
    }
    context.globalAlpha = 1;
    if (this.drawn.length) this.paintLasso(ink);
  }

  paintLasso(ink) {
    const { context } = this;
    context.beginPath();
    this.drawn.forEach(([x, y], at) => (at ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.strokeStyle = ink;
    context.lineWidth = 1.5;
    context.setLineDash([5, 4]);
    context.stroke();
    context.setLineDash([]);
  }

  enclosed() {
    const inside = (x, y) => {
      let odd = false;
      for (let i = 0, j = this.drawn.length - 1; i < this.drawn.length; j = i++) {
        const [[xi, yi], [xj, yj]] = [this.drawn[i], this.drawn[j]];
        if (yi > y !== yj > y && x < ((xj - xi) * (y - yi)) / (yj - yi) + xi) odd = !odd;
      }
      return odd;
    };
    return this.points.image.map((_, i) => i).filter((i) => this.counts(i) && inside(...this.at(i)));
  }

  listen() {
    const { canvas } = this;
    window.addEventListener("wheel", (event) => { if (event.target !== canvas) this.scrolled = event.timeStamp; }, { passive: true });
    canvas.addEventListener("wheel", (event) => {
      if (event.timeStamp - this.scrolled < FRESH && !event.ctrlKey) {
        this.scrolled = event.timeStamp;
        return;
      }
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0018)), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointercancel", (event) => this.up(event));
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.uses.hover(-1); });
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  down(event) {
    this.fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.canvas.setPointerCapture(event.pointerId);
    this.start = [event.offsetX, event.offsetY];
    this.moved = false;
    if (this.mode === "select" && this.fingers.size === 1) this.drawn = [this.start];
  }

  move(event) {
    const now = [event.offsetX, event.offsetY];
    const before = this.fingers.get(event.pointerId);
    if (!before) {
      if (event.pointerType === "mouse") this.uses.hover(this.nearest(...now));
      return;
    }
    if (Math.hypot(now[0] - this.start[0], now[1] - this.start[1]) > 4) this.moved = true;
    if (this.fingers.size === 2) this.pinch(event.pointerId, before, now);
    else if (this.mode === "select") {
      this.drawn.push(now);
      this.draw();
    } else if (this.moved) this.pan(now[0] - before[0], now[1] - before[1]);
    this.fingers.set(event.pointerId, now);
    if (this.moved) this.uses.hover(-1);
  }

  pinch(id, before, now) {
    const [other] = [...this.fingers].filter(([finger]) => finger !== id).map(([, place]) => place);
    const apart = (one) => Math.max(10, Math.hypot(one[0] - other[0], one[1] - other[1]));
    this.drawn = [];
    this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    this.zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  }

  up(event) {
    if (!this.fingers.delete(event.pointerId)) return;
    if (this.mode === "select" && this.drawn.length > 2 && this.moved) this.uses.lasso(this.enclosed());
    else if (!this.moved && event.type === "pointerup") {
      const point = this.nearest(event.offsetX, event.offsetY);
      if (event.pointerType === "mouse") { if (point >= 0) this.uses.open(point); } else this.uses.hover(point);
    }
    this.drawn = [];
    this.draw();
  }

  key(event) {
    const steps = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    if (steps[event.key]) this.pan(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.reset();
    else return;
    event.preventDefault();
  }
}

// explorer/map.js
// The map of the images, as in the report. Images selected with the lasso are listed below it.


const AGAIN = 1500; // milliseconds after which a map that is not ready is requested again

class MapView {
  constructor(app) {
    this.app = app;
    this.text = note("");
    this.stage = make("div", {});
    this.list = new SelectionGrid(app, { of: "all" });
    this.found = make("div", { class: "found", hidden: true }, this.list.bar, this.list.grid.body);
    this.body = make("section", { class: "map-view", "aria-labelledby": "title" },
      make("h2", { id: "title", class: "title", text: "Map" }), this.text, this.stage, this.found);
    this.panel = null;
    this.refresh();
  }

  async refresh() {
    let points;
    try {
      points = await this.app.talk.ask("/api/map");
    } catch (error) {
      this.app.tell(messageOf(error));
      return;
    }
    if (points.absent) {
      this.text.textContent = points.waiting ? "The map is being made …" : `No map: ${points.absent}.`;
      if (points.waiting) setTimeout(() => { if (this.body.isConnected) this.refresh(); }, AGAIN);
      return;
    }
    this.text.textContent = mapSentence(points, "Choose Select and draw round some to correct them.");
    this.panel ??= this.build(points);
    const { map } = this.panel;
    if (map.points !== points) {
      const there = new Set(points.image);
      map.points = points;
      this.panel.choose([]);
      this.list.grid.show(this.list.grid.rows.filter((row) => there.has(row)));
      this.found.hidden = !this.list.grid.rows.length;
    }
    this.panel.legend.draw(this.app.talk.state.clusters, ({ name }) => name, "find them among the clusters");
  }

  build(points) {
    const { pictures, viewer } = this.app;
    const panel = new ScatterPanel(points, pictures.absent ? null : pictures, "Select what is in view", {
      open: (row) => viewer.open([row], 0),
      take: (taken) => this.take(taken),
      tip: (point) => this.describe(point),
    });
    this.stage.replaceChildren(...panel.parts);
    return panel;
  }

  describe(point) {
    const { image, cluster } = /** @type {ScatterPanel} */ (this.panel).map.points;
    return [
      this.app.pictures.element(image[point]),
      make("span", { class: "tip-name", text: this.app.talk.nameOf(cluster[point]) }),
      button("Open", () => this.app.viewer.open([image[point]], 0), { class: "quiet touch" }),
    ];
  }

  take(points) {
    const { panel, list: { grid } } = this;
    if (!panel) return;
    panel.choose(points);
    this.found.hidden = !points.length;
    grid.show(points.map((point) => panel.map.points.image[point]));
    grid.selectAll();
    if (points.length) grid.body.focus();
  }

  key(event) {
    return this.list.key(event);
  }
}

// explorer/pictures.js
// Small pictures of rows. The browser loads them when they become visible, and caches them.


class Pictures {
  constructor(talk) {
    this.talk = talk;
    this.drawn = new Map();
  }

  get absent() {
    return this.talk.state.pictures.absent;
  }

  address(row, kind = "thumbnail") {
    return `/api/${kind}/${row}?v=${encodeURIComponent(this.talk.state.pictures.version)}`;
  }

  element(row, alt = "") {
    if (this.absent) return null;
    const { pixelated } = this.talk.state.pictures;
    const picture = make("img", { class: "picture", alt, loading: "lazy", decoding: "async", draggable: "false", "data-pixelated": pixelated });
    picture.addEventListener("error", () => picture.classList.add("missing"));
    picture.src = this.address(row);
    return picture;
  }

  thumb(row, label, open, name) {
    const kind = this.talk.state.run.kind === "rows" ? "Row" : "Image";
    return { picture: this.element(row), name: name ?? `${kind} ${row}`, label, open };
  }

  draw(context, row, x, y, side, again) {
    if (this.absent) return false;
    const address = this.address(row);
    let picture = this.drawn.get(address);
    if (!picture) {
      picture = new Image();
      picture.src = address;
      picture.decode().then(again, () => {});
      this.drawn.set(address, picture);
    }
    if (!picture.complete || !picture.naturalWidth) return false;
    context.drawImage(picture, x, y, side, side);
    return true;
  }
}

// explorer/proposals.js
// Proposed moves: groups of images, each from one cluster to another, to accept or refuse.


const LEARNING = "Learning from your corrections …";
const NOTHING = "Nothing would move. Confirm, move or junk some images, or answer questions under Teach.";

class ProposalsView {
  constructor(app) {
    this.app = app;
    this.groups = [];
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

  learned() {
    this.refresh();
  }

  mark() {
    const { app, number, groups } = this;
    const stale = number !== app.talk.state.number;
    const why = whyNot(app.lessons.now);
    this.body.classList.toggle("stale", stale);
    this.all.hidden = !groups.length;
    for (const one of this.body.querySelectorAll("button.deed, .main")) one.setAttribute("aria-disabled", String(stale));
    if (why || stale) this.text.textContent = why || LEARNING;
  }

  draw(moves, more) {
    const focused = document.activeElement?.closest(".card")?.id;
    this.heading.textContent = moves ? wouldMove(moves, this.app.talk.one) : "Proposals";
    this.text.textContent = !moves ? NOTHING : "The most certain come first. Undo (U) takes back what you accept."
      + (more ? ` ${plural(more, "small group")} not shown.` : "");
    this.cards.replaceChildren(...this.groups.map((group) => this.card(group)));
    this.mark();
    if (focused) (document.getElementById(focused) ?? this.cards.firstElementChild)?.querySelector("a")?.focus({ preventScroll: true });
  }

  card(group) {
    const { pictures, talk, viewer } = this.app;
    const { source, to, size, certainty, rows } = group;
    const name = `${talk.nameOf(source)} to ${talk.nameOf(to)}`;
    const images = rows.slice(0, 8).map((row, at) => pictures.thumb(row, `Open ${talk.one} ${row}`, () => viewer.open(rows, at)));
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

  accept(groups) {
    if (this.number !== this.app.talk.state.number) return this.app.tell(LEARNING);
    return this.app.corrections.accept(groups, (groups ?? this.groups).reduce((sum, { size }) => sum + size, 0));
  }

  refuse(group) {
    if (this.number !== this.app.talk.state.number) return this.app.tell(LEARNING);
    return this.app.corrections.refuse(group);
  }

  get results() {
    return /** @type {HTMLElement | null} */ (this.body.querySelector(".card a"));
  }

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

class GroupView {
  constructor(app, source, to) {
    this.app = app;
    this.source = source;
    this.to = to;
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

  key(event) {
    if (event.key === "y") this.accept();
    else if (event.key === "Escape" && !this.list.grid.selected.size) this.app.go("proposals");
    else return this.list.key(event);
    return true;
  }
}

// explorer/talk.js
// The connection to the server: the current state, and edits, each with the number of the newest edit that the page knows.


const POLL = 1500; // milliseconds between two checks for edits by others

class Talk {
  constructor(changed) {
    this.changed = changed;
    this.state = /** @type {ExplorerState} */ (/** @type {unknown} */ (null)); // set by load()
    this.byId = new Map();
    this.edits = 0; // sent by this page
    this.underway = 0;
    this.foreign = 0; // changes by others that this page has shown
    this.late = 0; // edits that the server rejected because of an edit by somebody else
    this.announced = false; // whether this page has shown the features
    this.before = Promise.resolve();
  }

  async ask(path, options = {}) {
    let answer, found;
    try {
      answer = await fetch(path, options);
      found = await answer.json();
    } catch {
      throw new Refusal(answer && !answer.ok ? `The server has failed (${answer.status}): its terminal says why.`
        : "The server does not answer: is twincluster serve still running?");
    }
    if (answer.ok) return found;
    if (answer.status === 409) {
      this.late += 1;
      this.foreign += 1;
      this.take(found.state);
      const what = found.state.undo ? ` (now newest: ${found.state.undo})` : "";
      throw new Refusal(`Somebody else made a change meanwhile${what}. Yours was not made: look again, and repeat it.`);
    }
    throw new Refusal(found.error);
  }

  async load() {
    this.take(await this.ask("/api/state"));
  }

  edit(kind, fields = {}) {
    return this.inTurn(() => this.send(kind, fields));
  }

  inTurn(deed) {
    const { late } = this;
    const done = this.before.then(() => {
      if (late !== this.late) throw new Refusal("Somebody else made a change meanwhile. Yours were not made: look again, and repeat them.");
      return deed();
    });
    this.before = done.catch(() => {});
    return done;
  }

  async send(kind, fields) {
    const body = JSON.stringify({ kind, expected: this.state.number, ...fields });
    this.edits += 1;
    this.underway += 1;
    try {
      this.take(await this.ask("/api/edit", { method: "POST", headers: { "content-type": "application/json" }, body }));
    } finally {
      this.underway -= 1;
    }
  }

  take(state) {
    this.state = state;
    this.byId = new Map(state.clusters.map((cluster) => [cluster.id, cluster]));
    this.changed(state);
  }

  get one() {
    return this.state.run.kind.slice(0, -1);
  }

  nameOf(id) {
    if (id === -2) return "Junk";
    return id === -1 ? "Unreadable" : this.byId.get(id)?.name ?? `Cluster ${id}`;
  }

  watch(tell, warn) {
    setInterval(async () => {
      if (document.hidden || this.underway) return;
      const { edits } = this;
      try {
        const { number, ready, version, trouble } = await this.ask("/api/number");
        warn(trouble && `${capitalised(trouble)}. What you see is how it was before.`);
        if (number === null || edits !== this.edits) return; // the change may be an edit of this window
        const edited = number !== this.state.number;
        const updated = version !== this.state.pictures.version;
        const waits = ready && !this.state.features.ready && !this.announced;
        if (!edited && !updated && !waits) return;
        this.announced = ready;
        const before = this.state.run.inputs;
        const state = await this.ask("/api/state");
        if (edits !== this.edits) return;
        if (edited || updated) this.foreign += 1;
        this.take(state);
        const more = this.state.run.inputs - before;
        if (updated) tell(more > 0 ? `${plural(more, "new image")}, by twincluster update.` : "Some images have changed, by twincluster update.");
        else if (edited) tell(`Changed in another window${this.state.undo ? `: ${this.state.undo}` : ""}.`);
      } catch (error) {
        warn(messageOf(error));
      }
    }, POLL);
  }
}

// explorer/questions.js
// One image at a time: which cluster does it belong to? The next questions and pictures are loaded in advance; answers
// are sent in the background, in order.


const OFFERED = 5; // clusters offered at once
const EACH = 4; // typical images of each
const AHEAD = 8; // questions loaded in advance
const STAY = 3; // questions that stay when a new lesson has better ones
const RANDOM_EVERY = 5; // every fifth question is about a random image
const MOST_SKIPPED = 400;
const RETRY = 500; // milliseconds until more questions are requested
const JUNK = -2;


class Questions {
  constructor(app) {
    this.app = app;
    const before = kept(app, "questions", { queue: /** @type {Question[]} */ ([]), skipped: /** @type {number[]} */ ([]), run: 0 });
    this.queue = before.queue;
    this.skipped = new Set(before.skipped);
    this.run = before.run; // questions since the last random one
    this.answered = new Set();
    this.past = [];
    this.foreign = app.talk.foreign;
    this.asking = false;
    this.again = false;
    this.done = false; // whether no question is left
    this.about = null;
    this.strips = new Map();
    this.picture = button(null, () => this.look(), { class: "teach-picture" });
    this.path = note("");
    this.random = make("p", { class: "note random", text: "A random image: its answer counts for the estimate." });
    this.offers = Array.from({ length: OFFERED }, (_, at) => {
      const offer = button(null, (event) => this.choose(at, event), { class: "offer", "aria-keyshortcuts": String(at + 1) });
      return make("li", {}, offer);
    });
    const deed = (key, text, act) => button(null, (event) => { act(); this.unfocus(event); }, { "aria-keyshortcuts": key === "space" ? "Space" : key });
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

  offered() {
    const { current, app } = this;
    const there = current?.clusters.filter(({ id }) => app.talk.byId.has(id)) ?? [];
    const from = current?.from ?? 0;
    return Array.from({ length: OFFERED }, (_, at) => there[from + at] ?? null);
  }

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

  save() {
    const queue = this.queue.slice(0, STAY).map(({ row, clusters, sample, from }) => ({ row, clusters, sample, from }));
    keep(this.app, "questions", { queue, skipped: [...this.skipped].slice(-MOST_SKIPPED), run: this.run });
  }

  choose(at, event) {
    const choice = this.offered()[at];
    if (choice) this.answer(choice.id);
    this.unfocus(event);
  }

  unfocus(event) {
    if (/** @type {MouseEvent | undefined} */ (event)?.detail && !document.querySelector("dialog[open]")) {
      /** @type {HTMLElement | null} */ (document.querySelector("main"))?.focus({ preventScroll: true });
    }
  }

  answer(to) {
    const { current } = this;
    if (!current) return;
    this.advance(current, 1);
    this.send(current, "answer", { rows: [current.row], to, sample: current.sample });
  }

  advance(question, edits) {
    this.past.push({ question, from: question.from, edits });
    this.queue = this.queue.filter((one) => one !== question);
    if (edits) this.answered.add(question.row);
    this.run = question.sample ? 0 : this.run + 1;
    this.show();
    this.save();
    if (this.queue.length < AHEAD - STAY) this.fetch();
  }

  send(question, kind, fields) {
    const { from } = question;
    this.app.talk.edit(kind, fields).catch((error) => {
      this.past = this.past.filter((step) => step.question !== question);
      this.back(question, kind === "refuse" ? Math.max(0, from - OFFERED) : from);
      this.app.tell(messageOf(error));
    });
  }

  back(question, from) {
    question.from = from;
    this.answered.delete(question.row);
    this.skipped.delete(question.row);
    this.queue = [question, ...this.queue.filter((one) => one !== question)];
    this.show();
    this.save();
  }

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

  undo() {
    const step = this.past.pop();
    if (!step) return this.app.corrections.undo();
    this.back(step.question, step.from);
    return step.edits ? this.app.corrections.undo() : undefined;
  }

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

// explorer/sheets.js
// Contact sheets: 24 images of one cluster. Click the wrong ones; one key confirms the rest.



const RECENT = 5; // latest clusters, which are not shown again at once

class Sheets {
  constructor(app) {
    this.app = app;
    this.sheet = kept(app, "sheet", { cluster: null, rows: [], wrong: [] });
    this.next = null;
    this.recent = [];
    this.past = [];
    this.foreign = app.talk.foreign;
    this.lesson = null;
    this.turn = 0; // number of the request: answers to older requests are ignored
    this.number = -1; // of the newest edit in the sheet; -1 before it has been shown
    this.heading = make("h3", { class: "sheet-title" });
    this.text = make("p", { class: "note", role: "status" });
    this.rest = button(null, () => this.confirm(), { class: "main", "aria-keyshortcuts": "c" }, );
    this.tiles = make("div", { class: "sheet", role: "group", "aria-label": "Images of the cluster" });
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

  async ask(cluster = null) {
    const query = new URLSearchParams({ without: this.recent.join(",") });
    if (cluster !== null) query.set("cluster", String(cluster));
    const found = await this.app.talk.ask(`/api/sheet?${query}`);
    for (const row of found.rows) this.picture(row); // preload it
    return found.rows.length ? { cluster: found.cluster, rows: found.rows, wrong: [] } : null;
  }

  picture(row) {
    const picture = this.app.pictures.element(row);
    if (picture) picture.loading = "eager";
    return picture ?? make("span", { class: "tile-name", text: String(row) });
  }

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

  toggle(row) {
    const { wrong } = this.sheet;
    this.sheet.wrong = wrong.includes(row) ? wrong.filter((one) => one !== row) : [...wrong, row];
    keep(this.app, "sheet", this.sheet);
    this.mark();
  }

  confirm() {
    const { sheet } = this;
    const { cluster, rows, wrong } = sheet;
    if (cluster === null || !rows.length) return;
    const right = rows.filter((row) => !wrong.includes(row));
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

  key({ key, target }) {
    const { tagName } = /** @type {Element} */ (target);
    if (key === "c") this.confirm();
    else if (key === " " && !["BUTTON", "A"].includes(tagName)) this.skip();
    else if (key.startsWith("Arrow")) return this.step(key);
    else return false;
    return true;
  }

  step(key) {
    const tiles = [...this.tiles.querySelectorAll("button")];
    const at = tiles.findIndex((tile) => tile === document.activeElement);
    const columns = Math.max(1, tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const next = tiles[at < 0 ? 0 : at + steps[key]];
    next?.focus();
    return Boolean(next);
  }
}

// explorer/teach.js
// The Teach page: questions about single images, or contact sheets, and the estimate of correct images.


const WAYS = [["questions", "Questions"], ["sheet", "Contact sheet"]];

class TeachView {
  constructor(app) {
    this.app = app;
    this.questions = new Questions(app);
    this.sheets = new Sheets(app);
    this.mode = this.questions;
    this.ways = choices("Way to teach", WAYS, "questions", (name) => app.go(name === "sheet" ? "teach/sheet" : "teach"));
    this.wait = make("p", { class: "note", role: "status" });
    this.stage = make("div", { class: "teach-stage" });
    this.trust = make("aside", { class: "trust", "aria-labelledby": "trust-title" });
    this.body = make("section", { class: "teach", "aria-labelledby": "title" },
      make("div", { class: "row list-top" }, make("h2", { id: "title", class: "title", text: "Teach" }), this.ways),
      this.wait, make("div", { class: "teach-columns" }, this.stage, this.trust));
  }

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

  table(clusters) {
    const { talk } = this.app;
    const rows = clusters.filter(({ id }) => talk.byId.has(id)).sort((one, other) => one.share - other.share).map((one) =>
      make("tr", {}, make("th", { scope: "row" }, swatch(one.id), " ", talk.nameOf(one.id)), make("td", { class: "figure", text: whole(one.share) }),
        make("td", { class: "figure", text: `${whole(one.low)} to ${whole(one.high)}` })));
    return make("table", { class: "shares" }, make("thead", {}, make("tr", {}, make("th", { scope: "col", text: "Cluster" }),
      make("th", { scope: "col", text: "Right" }), make("th", { scope: "col", text: "95% interval" }))), make("tbody", {}, rows));
  }

  key(event) {
    if (event.key === "Escape") this.app.go("clusters");
    else return this.app.lessons.now.stage === "ready" && this.mode.key(event);
    return true;
  }
}

function interval({ share, low, high }) {
  const range = make("span", { class: "interval-range" });
  range.style.left = `${100 * low}%`;
  range.style.width = `${Math.max(1, 100 * (high - low))}%`;
  const point = make("span", { class: "interval-point" });
  point.style.left = `${100 * share}%`;
  return make("p", { class: "interval", "aria-hidden": "true" }, range, point);
}

// parts/tree.js
// The tree of clusters: cuts of it are made here, from the fine clusters, without asking anybody.


const ON_CARD = 8; // images of a card

class Branches {
  constructor({ joins, leaves, clusters }) {
    this.count = leaves.length;
    this.joins = joins;
    const alive = new Set(clusters.flatMap((cluster) => cluster.leaves)); // those of clusters made by hand have left
    this.members = leaves.map((_, leaf) => (alive.has(leaf) ? [leaf] : []));
    this.parents = new Array(2 * this.count - 1).fill(-1);
    joins.forEach((pair, at) => {
      this.members.push(pair.flatMap((child) => this.members[child]).sort((one, other) => one - other));
      for (const child of pair) this.parents[child] = this.count + at;
    });
    this.most = alive.size;
  }

  level(wanted) {
    let groups = [this.members[this.members.length - 1]].filter((leaves) => leaves.length);
    for (let node = this.members.length - 1; node >= this.count && groups.length < wanted; node -= 1) {
      const parts = this.joins[node - this.count].map((child) => this.members[child]).filter((leaves) => leaves.length);
      if (parts.length < 2) continue;
      groups = groups.flatMap((leaves) => (leaves.length === this.members[node].length && leaves[0] === this.members[node][0] ? parts : [leaves]));
    }
    return groups;
  }

  above(leaves) {
    return this.members.findIndex((members) => members.length >= leaves.length && leaves.every((leaf) => members.includes(leaf)));
  }

  parts(leaves) {
    let node = this.above(leaves);
    while (node >= this.count) {
      const inside = this.joins[node - this.count].map((child) => this.members[child].filter((leaf) => leaves.includes(leaf)));
      if (inside.every((part) => part.length)) return inside;
      node = this.joins[node - this.count][inside[0].length ? 0 : 1];
    }
    return null;
  }

  joined(groups, at) {
    const node = this.above(groups[at]);
    let above = this.parents[node];
    while (above >= 0 && this.members[above].length === this.members[node].length) above = this.parents[above];
    if (above < 0) return null;
    const inside = new Set(this.members[above]);
    const [ends, stay] = [true, false].map((wanted) => groups.filter((leaves) => leaves.some((leaf) => inside.has(leaf)) === wanted));
    return [ends.flat().sort((one, other) => one - other), ...stay];
  }
}

class TreePanel {
  constructor(tree, { one, nameOf, thumbs, deeds, atOnce }) {
    this.tree = tree;
    this.one = one;
    this.nameOf = nameOf;
    this.thumbs = thumbs;
    this.deeds = deeds;
    this.branches = new Branches(tree);
    this.now = tree.clusters.map(({ leaves }) => leaves);
    this.groups = this.now;
    this.level = null;
    this.shown = atOnce;
    const { kept } = tree;
    const least = kept.length + Math.min(1, this.branches.most);
    this.slider = make("input", { type: "range", min: least, max: kept.length + this.branches.most, step: 1, "aria-label": "Number of clusters" });
    this.slider.addEventListener("input", () => this.cut(Number(this.slider.value)));
    this.number = make("output", { class: "figure tree-number" });
    this.status = make("p", { class: "note", role: "status" });
    this.bar = make("div", { class: "row tree-deeds" });
    this.grid = make("div", { class: "cards" });
    this.more = button("", () => { this.shown += 2 * atOnce; this.draw(); });
    this.body = make("div", { class: "tree" },
      make("div", { class: "row tree-slider" }, make("span", { text: "Clusters" }), this.slider, this.number),
      this.naturalCuts(), make("div", { class: "tree-head" }, this.bar, this.status), this.grid, make("p", { class: "more" }, this.more));
    this.draw();
  }

  naturalCuts() {
    const { natural, kept } = this.tree;
    if (!natural.length) return note("Two halves of the set agree on no number of clusters better than on the next ones.");
    const best = natural.filter((cut) => cut.best).map((cut) => cut.clusters);
    const buttons = natural.map(({ clusters, agreement, best: isBest }) =>
      button(`${clusters} · ${decimal(agreement)}`, () => this.cut(clusters + kept.length), {
        class: isBest ? "natural best" : "natural", title: `${plural(clusters, "cluster")}: two halves of the set agree to ${decimal(agreement)}`,
      }));
    const equally = best.length > 1 ? ` Equally good: ${best.join(", ")}.` : "";
    return make("div", {}, make("div", { class: "row", role: "group", "aria-label": "Natural cuts" }, make("span", { class: "note", text: "Natural cuts" }), buttons),
      note(`Where two halves of the set, clustered without each other, agree better than with a few clusters more or fewer (1 is equal, 0 chance).${equally}`));
  }

  cut(wanted) {
    this.level = wanted;
    this.groups = this.branches.level(wanted - this.tree.kept.length);
    this.draw();
  }

  reset() {
    this.level = null;
    this.groups = this.now;
    this.draw();
  }

  open(at) {
    const parts = this.branches.parts(this.groups[at]);
    if (!parts) return;
    this.change([...this.groups.slice(0, at), ...parts, ...this.groups.slice(at + 1)], parts[0]);
  }

  close(at) {
    const groups = this.branches.joined(this.groups, at);
    if (groups) this.change(groups, groups[0]);
  }

  change(groups, focused) {
    this.groups = groups;
    this.level = null;
    this.draw();
    const title = /** @type {HTMLElement | null} */ (this.grid.querySelector(`[data-leaf="${focused[0]}"] h3`));
    title?.focus({ preventScroll: true });
    title?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  get total() {
    return this.groups.length + this.tree.kept.length;
  }

  get isNow() {
    const known = new Set(this.now.map((leaves) => leaves.join()));
    return this.groups.length === this.now.length && this.groups.every((leaves) => known.has(leaves.join()));
  }

  sizeOf(leaves) {
    return leaves.reduce((sum, leaf) => sum + this.tree.leaves[leaf].size, 0);
  }

  draw() {
    const { kept } = this.tree;
    this.slider.value = String(this.total);
    this.number.textContent = count(this.total);
    const order = this.groups.map((leaves, at) => ({ leaves, at, size: this.sizeOf(leaves) })).sort((one, other) => other.size - one.size);
    this.grid.replaceChildren(...order.slice(0, this.shown).map((group) => this.card(group)));
    this.more.hidden = order.length <= this.shown;
    this.more.textContent = `Show more of ${count(order.length)}`;
    const stays = kept.length ? ` ${plural(kept.length, "cluster")} that you made, or that nothing is in, stay: ${kept.slice(0, 6).map(this.nameOf).join(", ")}${kept.length > 6 ? " …" : ""}.` : "";
    this.status.textContent = `${this.isNow ? "These are the clusters there are." : `${plural(this.total, "cluster")} instead of ${this.now.length + kept.length}.`}${stays}`;
    this.bar.replaceChildren(...this.deeds(this).filter((part) => part !== null && part !== undefined));
  }

  card({ leaves, at, size }) {
    const id = this.clusterOf(leaves);
    const name = this.titleOf(leaves, id);
    const stable = this.tree.stability[this.branches.above(leaves)];
    const facts = [plural(size, this.one), plural(leaves.length, "fine cluster"), `stability ${decimal(stable)}`];
    const opens = button("Open", () => this.open(at), { class: "quiet", "aria-label": `Open ${name}: divide it in two` });
    const closes = button("Close", () => this.close(at), { class: "quiet", "aria-label": `Close ${name}: join it with its branch` });
    opens.disabled = leaves.length < 2;
    closes.disabled = leaves.length === this.branches.most;
    return make("article", { class: "card", "data-leaf": leaves[0] },
      make("h3", { tabindex: "-1" }, id === null ? null : swatch(id), name), note(facts.join(" · ")),
      gallery(this.thumbs(this.typical(leaves)), "typical"), make("p", { class: "row deeds" }, opens, closes));
  }

  typical(leaves) {
    const largest = leaves.map((leaf) => this.tree.leaves[leaf]).filter(({ rows }) => rows.length).sort((one, other) => other.size - one.size);
    const rows = [];
    for (let turn = 0; rows.length < ON_CARD && largest.some((leaf) => leaf.rows.length > turn); turn += 1) {
      rows.push(...largest.filter((leaf) => leaf.rows.length > turn).map((leaf) => leaf.rows[turn]).slice(0, ON_CARD - rows.length));
    }
    return rows;
  }

  clusterOf(leaves) {
    const key = leaves.join();
    return this.tree.clusters.find((cluster) => cluster.leaves.length === leaves.length && cluster.leaves.join() === key)?.id ?? null;
  }

  titleOf(leaves, id) {
    if (id !== null) return this.nameOf(id);
    const inside = new Set(leaves);
    const names = this.tree.clusters.filter((cluster) => cluster.leaves.some((leaf) => inside.has(leaf))).map((cluster) => this.nameOf(cluster.id));
    if (names.length === 1) return `Part of ${names[0]}`;
    return `${names.slice(0, 2).join(" + ")}${names.length > 2 ? ` + ${names.length - 2} more` : ""}`;
  }
}

// explorer/tree.js
// The tree in the explorer: any cut can be looked at, and used as one edit.


const TREE_AGAIN = 1500; // milliseconds after which a tree that is not ready is asked for again

class TreeView {
  constructor(app) {
    this.app = app;
    this.panel = null;
    this.asked = 0;
    this.number = -1; // of the edit that the tree is shown after
    this.text = note("Fewer or more clusters, without training again. Look at any number; nothing changes until you use it.");
    this.stage = make("div", {});
    this.body = make("section", { class: "tree-view", "aria-labelledby": "title" },
      make("h2", { id: "title", class: "title", text: "Tree of clusters" }), this.text, this.stage);
  }

  enter() {
    this.refresh();
  }

  async refresh() {
    const { talk } = this.app;
    if (this.number === talk.state.number) return;
    const turn = ++this.asked;
    let tree;
    try {
      tree = await talk.ask("/api/tree");
    } catch (error) {
      this.app.tell(messageOf(error));
      return;
    }
    if (turn !== this.asked) return;
    if (tree.absent) {
      this.text.textContent = tree.waiting ? "The tree is being made …" : `No tree: ${tree.absent}.`;
      if (tree.waiting) setTimeout(() => { if (this.body.isConnected) this.refresh(); }, TREE_AGAIN);
      return;
    }
    this.number = tree.number;
    this.text.textContent = "Fewer or more clusters, without training again. Look at any number; nothing changes until you use it.";
    const { pictures, viewer } = this.app;
    this.panel = new TreePanel(tree, {
      one: talk.one,
      nameOf: (id) => talk.nameOf(id),
      thumbs: (rows) => rows.map((row, at) => pictures.thumb(row, `Open ${talk.one} ${row}`, () => viewer.open(rows, at))),
      deeds: (panel) => this.deeds(panel),
      atOnce: 60,
    });
    this.stage.replaceChildren(this.panel.body);
  }

  deeds(panel) {
    if (panel.isNow) return [button("Use these clusters", () => {}, { class: "main", disabled: true })];
    return [
      button(`Use these ${plural(panel.total, "cluster")}`, () => this.use(panel), { class: "main" }),
      button("Back to the clusters there are", () => panel.reset()),
    ];
  }

  use(panel) {
    return this.app.corrections.now("cut", { groups: panel.groups }, `${plural(panel.total, "cluster")} now. U takes it back.`);
  }

  key(event) {
    if (event.key !== "Escape") return false;
    this.app.go("clusters");
    return true;
  }
}

// parts/viewer.js
// One image in a dialog. The arrow keys go through the list it was opened from.


class Viewer {
  constructor() {
    this.list = [];
    this.at = 0;
    this.dialog = make("dialog");
  }

  get image() {
    return this.list[this.at];
  }

  open(list, at) {
    if (!list.length) return;
    Object.assign(this, { list, at });
    if (this.dialog.isConnected) {
      this.draw();
      return;
    }
    this.dialog = make("dialog", { id: "viewer", class: "viewer", "aria-labelledby": "viewer-path" });
    this.dialog.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.key(event)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.draw();
    showDialog(this.dialog);
  }

  key(event) {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step) this.go(step);
    return Boolean(step);
  }

  go(step) {
    this.at = (this.at + step + this.list.length) % this.list.length;
    this.draw();
  }

  draw() {}

  fill({ picture, path, facts, actions = [], closing = {}, more = [] }) {
    const { dialog } = this;
    const alone = this.list.length < 2;
    const focused = dialog.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    dialog.replaceChildren(
      make("div", { class: "viewer-picture" }, picture),
      make("p", { class: "viewer-path", id: "viewer-path", text: path }),
      note(facts.filter(Boolean).join(" · ")),
      make("div", { class: "row" },
        button("←", () => this.go(-1), { "aria-label": "Previous image", disabled: alone }),
        button("→", () => this.go(1), { "aria-label": "Next image", disabled: alone }),
        actions, copyButton("Copy path", () => path), button("Close", () => dialog.close(), closing)),
      ...more.filter((one) => one !== null && one !== undefined),
    );
    const same = [...dialog.querySelectorAll("button")].find((one) => focused && nameOf(one) === focused);
    (same ?? /** @type {HTMLElement | null} */ (dialog.querySelector("[data-first]")))?.focus();
  }
}

function nameOf(element) {
  return element?.getAttribute("aria-label") ?? element?.textContent;
}

// explorer/viewer.js
// One image at full size, its details, and the most similar images.


class ImageViewer extends Viewer {
  constructor(app) {
    super();
    this.app = app;
    this.row = null;
  }

  key(event) {
    const { image, row } = this;
    const { corrections } = this.app;
    if (event.key === "j" && row) this.act(() => (row.cluster === -2 ? corrections.unjunk([image]) : corrections.junk([image])));
    else if (event.key === "m" && row) this.act(() => corrections.move([image], row.cluster));
    else if (event.key === "c" && row) this.act(() => corrections.confirm([image]));
    else if (event.key === "u") this.act(() => corrections.undo());
    else return super.key(event);
    return true;
  }

  async act(deed) {
    await deed();
    if (this.dialog.isConnected) this.draw();
  }

  async draw() {
    const { app, image } = this;
    let row = { row: image, path: String(image), cluster: -1, status: "", confidence: null };
    try {
      [row] = await app.talk.ask(`/api/details?rows=${image}`);
    } catch (error) {
      row.status = messageOf(error);
    }
    if (image !== this.image) return;
    this.row = row;
    const near = make("div", { class: "near" }, note("Looking for the nearest images …"));
    this.fill({
      picture: this.picture(row),
      path: row.path,
      facts: [
        app.talk.nameOf(row.cluster), row.confidence === null ? null : `confidence ${decimal(row.confidence)}`, row.example ? "placed by you" : null,
        `${count(this.at + 1)} of ${count(this.list.length)}`,
      ],
      actions: this.actions(row),
      closing: { "data-first": true },
      more: [make("h3", { text: "Most like it" }), near],
    });
    await this.showNeighbours(image, near);
  }

  picture({ row, path, cluster, status }) {
    const { pictures, talk } = this.app;
    if (pictures.absent || cluster === -1) return note(status === "ok" ? "No picture" : status || "No picture");
    const address = pictures.address(row, "image");
    return make("a", { href: address, target: "_blank", rel: "noopener", title: "Open in a tab of its own" },
      make("img", { class: "whole", src: address, alt: path, "data-pixelated": talk.state.pictures.pixelated }));
  }

  actions({ row, cluster }) {
    const { corrections } = this.app;
    if (cluster === -1) return [];
    return [
      button("Move…", () => this.act(() => corrections.move([row], cluster))),
      button("This is right", () => this.act(() => corrections.confirm([row]))),
      cluster === -2 ? button("Not junk", () => this.act(() => corrections.unjunk([row])))
        : button("Junk", () => this.act(() => corrections.junk([row]))),
    ];
  }

  async showNeighbours(image, place) {
    try {
      const { neighbours, absent } = await this.app.talk.ask(`/api/neighbours/${image}`);
      place.replaceChildren(absent ? note(`None to show: ${absent}.`) : this.neighbours(neighbours));
    } catch (error) {
      place.replaceChildren(note(messageOf(error)));
    }
  }

  neighbours(rows) {
    const { talk, pictures } = this.app;
    const numbers = rows.map(({ row }) => row);
    return gallery(rows.map(({ row, path, cluster, cosine }, at) => {
      const label = `${path ?? `Image ${row}`}${cluster === undefined ? "" : `, ${talk.nameOf(cluster)}`}, cosine ${decimal(cosine)}`;
      return pictures.thumb(row, label, () => this.open(numbers, at), path && baseName(path));
    }), "many", "Most like it");
  }
}

// explorer/explorer.js
// Builds the page: the views, which the address names, the toolbar and the keys.


const VIEWS = [
  { name: "clusters", text: (state) => `Clusters (${count(state.clusters.length)})`, open: (app) => (app.overview ??= new ClustersView(app)) },
  { name: "tree", text: () => "Tree", open: (app) => new TreeView(app) },
  { name: "teach", text: () => "Teach", open: (app, [way]) => (app.teaching ??= new TeachView(app)).choose(way) },
  {
    name: "proposals", text: (state, app) => `Proposals (${count(app.lessons.moves)})`,
    open: (app, [source, to]) => (to === undefined ? new ProposalsView(app) : new GroupView(app, Number(source), Number(to))),
  },
  { name: "map", text: () => "Map", open: (app) => new MapView(app) },
  { name: "cleanup", text: () => "Clean up", open: (app) => new CleanUpView(app) },
  { name: "all", text: (state) => `All ${state.run.kind}`, open: (app) => new ListView(app, "all") },
  { name: "junk", text: (state) => `Junk (${count(state.junk)})`, open: (app) => new ListView(app, "junk") },
  {
    name: "unreadable", text: (state) => `Unreadable (${count(state.unreadable)})`, open: (app) => new ListView(app, "unreadable"),
    hidden: (state) => !state.unreadable,
  },
  {
    name: "like", text: () => "More like these", open: (app) => new LikeView(app, app.like.splice(0)),
    hidden: (state, app) => app.where !== "like",
  },
];

class Explorer {
  constructor() {
    this.chosen = new Set();
    this.view = null;
    this.overview = null;
    this.teaching = null;
    this.like = [];
    this.where = "";
    this.telling = 0;
    this.links = [];
    this.undo = button("Undo", () => this.takeBack(), { "aria-keyshortcuts": "u" });
    this.redo = button("Redo", () => this.corrections.redo(), { "aria-keyshortcuts": "Shift+U" });
    this.talk = new Talk(() => this.refresh());
    this.lessons = new Lessons(this);
    this.pictures = new Pictures(this.talk);
    this.corrections = new Corrections(this);
    this.viewer = new ImageViewer(this);
    this.drops = new Drops(this);
  }

  async start() {
    try {
      await this.talk.load();
    } catch (error) {
      find("main").replaceChildren(make("p", { class: "warning", text: messageOf(error) }));
      return;
    }
    this.links = VIEWS.map(({ name }) => make("a", { href: `#${name}` }));
    find("views").append(...this.links.map((link) => make("li", {}, link)));
    const lookUp = this.talk.one === "row" ? [] : [this.drops.button, this.drops.input];
    find("tools").append(this.undo, this.redo, ...lookUp, button("Keys", showKeys, { "aria-keyshortcuts": "?" }));
    const head = /** @type {HTMLElement} */ (document.querySelector(".top")); // what sticks below it has to know how high it is
    new ResizeObserver(() => document.documentElement.style.setProperty("--top", `${head.offsetHeight}px`)).observe(head);
    window.addEventListener("hashchange", () => {
      for (const dialog of document.querySelectorAll("dialog")) dialog.close(); // it belongs to the view before
      this.route();
    });
    document.addEventListener("keydown", (event) => this.key(event));
    this.talk.watch((text) => this.tell(text), (text) => this.warn(text));
    this.route();
    this.lessons.follow();
  }

  go(where, cluster) {
    if (location.hash !== `#${where}`) history.pushState(null, "", `#${where}`);
    this.route(cluster);
  }

  route(cluster) {
    const [where, ...rest] = location.hash.slice(1).split("/");
    const [id] = rest;
    const before = this.view;
    if (where === "main" && before) return; // what the link at the top of the page leads to
    if (where === "cluster" && !this.talk.byId.has(Number(id))) {
      this.tell("That cluster is not there any more.");
      history.replaceState(null, "", "#clusters");
      this.route();
      return;
    }
    before?.leave?.();
    const view = VIEWS.find(({ name }) => name === where) ?? VIEWS[0];
    this.where = where === "cluster" ? VIEWS[0].name : view.name;
    this.view = where === "cluster" ? new ListView(this, "cluster", Number(id)) : view.open(this, rest);
    document.body.classList.toggle("is-list", this.view.body.classList.contains("list"));
    find("main").replaceChildren(this.view.body);
    window.scrollTo({ top: 0, behavior: "instant" });
    if (before) find("main").focus({ preventScroll: true });
    this.drawTop();
    this.view.enter?.(cluster ?? before?.cluster);
  }

  refresh() {
    if (!this.view) return;
    this.drawTop();
    this.view.refresh();
    this.lessons.follow();
  }

  learned() {
    this.drawTop();
    this.view?.learned?.();
  }

  showLike(rows) {
    this.like = rows;
    this.go("like");
  }

  takeBack() {
    return this.view?.undo ? this.view.undo() : this.corrections.undo();
  }

  drawTop() {
    const { state } = this.talk;
    document.title = `${state.run.source} · twincluster`;
    find("source").textContent = `${state.run.source} · ${plural(state.run.inputs, this.talk.one)}`
      + (state.pictures.absent ? ` · without pictures: ${state.pictures.absent}` : "");
    this.links.forEach((link, at) => { // the links are reused, so that the focus stays
      const { name, text, hidden } = VIEWS[at];
      link.textContent = text(state, this);
      if (name === this.where) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      if (link.parentElement) link.parentElement.hidden = hidden?.(state, this) ?? false;
    });
    this.drawProposed();
    for (const [one, what] of /** @type {const} */ ([[this.undo, state.undo], [this.redo, state.redo]])) {
      one.setAttribute("aria-disabled", String(!what)); // a disabled button would lose the focus
      one.title = what ?? "";
    }
  }

  drawProposed() {
    const { moves } = this.lessons;
    find("proposed").hidden = !moves || ["teach", "proposals"].includes(this.where);
    const text = `${wouldMove(moves, this.talk.one)} after your corrections.`;
    if (moves && find("moves").textContent !== text) find("moves").textContent = text;
  }

  choose(id, wanted) {
    if (wanted) this.chosen.add(id);
    else this.chosen.delete(id);
    this.view?.drawBar?.();
  }

  tell(text) {
    const told = find("told");
    told.textContent = text;
    told.classList.add("shown");
    clearTimeout(this.telling);
    this.telling = setTimeout(() => told.classList.remove("shown"), 6000);
  }

  warn(text) {
    if (find("trouble").textContent === text) return;
    find("trouble").textContent = text;
    find("trouble").hidden = !text;
  }

  key(event) {
    const target = /** @type {HTMLInputElement} */ (event.target);
    const typing = target.matches("textarea, select, input:not([type=checkbox])");
    if (event.isComposing) return; // enter and escape belong to the input method
    if (event.defaultPrevented || document.querySelector("dialog[open]") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (typing && event.key !== "Escape" && event.key !== "Enter") return;
    if (typing) { // from the search field to its results, or clear it
      if (event.key === "Escape") target.value = "";
      target.dispatchEvent(new Event("input"));
      target.blur();
      this.view?.results?.focus({ preventScroll: true });
    } else if (event.key === "u") this.takeBack();
    else if (event.key === "U") this.corrections.redo();
    else if (event.key === "?") showKeys();
    else if (!this.view?.key(event)) return;
    event.preventDefault();
  }
}

function showKeys() {
  const list = make("dl", { class: "keys" }, KEYS.map(([key, text]) => [make("dt", { text: key }), make("dd", { text })]));
  const dialog = make("dialog", { class: "ask", "aria-labelledby": "asked" }, make("h2", { id: "asked", text: "Keys" }), list);
  dialog.append(button("Close", () => dialog.close(), { "data-first": true }));
  return showDialog(dialog);
}

window.explorer = new Explorer(); // for the console
window.explorer.start();
})();
