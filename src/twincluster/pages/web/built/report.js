// Made by tools/bundle_pages.py from report.js and the modules it imports: do not edit.
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

// report/charts.js
// Small charts of the training. Each has a text that says what it shows.


const [WIDE, HIGH, LEFT, BOTTOM] = [340, 150, 38, 22];

function lineChart(group, epochs) {
  const known = group.lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const lastEpoch = epochs[epochs.length - 1];
  const [low, high] = [Math.min(...known, group.title === "Health" ? 0 : Infinity), Math.max(...known)];
  const x = (at) => LEFT + (epochs.length > 1 ? (at / (epochs.length - 1)) * (WIDE - LEFT - 8) : (WIDE - LEFT) / 2);
  const y = (value) => 8 + (1 - (value - low) / (high - low || 1)) * (HIGH - BOTTOM - 12);
  const lines = group.lines.map(({ values }, at) => {
    return stretches(values).map((stretch) => {
      const points = stretch.map(([i, value]) => [x(i).toFixed(1), y(value).toFixed(1)]);
      const [[cx, cy]] = points;
      return points.length === 1 ? makeSvg("circle", { class: `line line-${at}`, cx, cy, r: 2 })
        : makeSvg("polyline", { class: `line line-${at}`, points: points.map((point) => point.join(",")).join(" ") });
    });
  });
  const last = (values) => values.findLast((value) => value !== null);
  const first = (values) => values.find((value) => value !== null);
  const described = group.lines.map(({ name, values }) => `${name} from ${short(first(values))} to ${short(last(values))}`).join("; ");
  const label = `${group.title} over ${plural(lastEpoch, "epoch")}: ${described}`;
  const svg = makeSvg("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label },
    axis(low, high, y), tick(x(0), HIGH - 6, epochs[0], "start"),
    epochs.length > 1 ? tick(WIDE - 8, HIGH - 6, `epoch ${lastEpoch}`, "end") : null, lines);
  const key = group.lines.map(({ name, values }, at) => make("li", {}, dash(at), make("span", { text: `${name} ${short(last(values))}` })));
  return make("figure", { class: "chart" }, make("h3", { text: group.title }), svg, make("ul", { class: "key" }, key),
    make("figcaption", { class: "note", text: group.note }));
}

function stretches(values) {
  const found = [[]];
  values.forEach((value, i) => {
    const stretch = found[found.length - 1];
    if (value !== null) stretch.push([i, value]);
    else if (stretch.length) found.push([]);
  });
  return found.filter((stretch) => stretch.length);
}

function dash(at) {
  const line = makeSvg("line", { class: `line line-${at}`, x1: 0, y1: 4, x2: 18, y2: 4 });
  return makeSvg("svg", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" }, line);
}

function axis(low, high, y) {
  return [low, high].flatMap((value) => [
    makeSvg("line", { class: "axis", x1: LEFT, x2: WIDE - 8, y1: y(value), y2: y(value) }),
    tick(LEFT - 5, y(value) + 4, short(value), "end"),
  ]);
}

function tick(x, y, text, anchor) {
  return makeSvg("text", { x, y, "text-anchor": anchor, text });
}

function short(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

function sizesChart(histograms) {
  const top = Math.max(...histograms.flatMap(({ shares }) => shares));
  const drawings = histograms.map(({ epoch, clusters, shares }) => {
    const wide = 100 / shares.length;
    const bars = shares.map((share, at) => bar(at * wide, Math.max(0.5, wide * 0.84), 60, (58 * share) / top));
    const even = 60 - 58 / clusters / top;
    const label = `Epoch ${epoch}: the largest cluster holds ${percent(shares[0])}, the smallest ${percent(shares[shares.length - 1])}`;
    const frame = { viewBox: "0 0 100 62", role: "img", "aria-label": label, preserveAspectRatio: "none" };
    const svg = makeSvg("svg", frame, bars, makeSvg("line", { class: "even", x1: 0, x2: 100, y1: even, y2: even }));
    return make("div", {}, svg, note(`epoch ${epoch}`));
  });
  const meaning = "each bar is a cluster, largest first; the line is where all would be if they were even";
  return make("figure", { class: "chart whole" }, make("h3", { text: "Sizes of clusters" }),
    make("div", { class: "moments" }, drawings), make("figcaption", { class: "note", text: meaning }));
}

function bar(x, width, bottom, height) {
  return makeSvg("rect", { class: "bar-fill", x, y: bottom - height, width, height });
}

function confidenceChart({ bins, mean, sure }) {
  const top = Math.max(...bins, 1);
  const wide = 300 / bins.length;
  const bars = bins.map((many, at) => bar(at * wide + 1, wide - 2, 70, many ? Math.max(1, (68 * many) / top) : 0));
  const label = mean === null ? "No image has a cluster"
    : `Confidence of all images from 0 to 1: mean ${decimal(mean)}, ${percent(sure)} at .5 or more`;
  const line = makeSvg("line", { class: "axis", x1: 0, x2: 300, y1: 70.5, y2: 70.5 });
  return make("figure", { class: "chart" }, makeSvg("svg", { viewBox: "0 0 300 90", role: "img", "aria-label": label },
    bars, line, tick(0, 86, "unsure", "start"), tick(300, 86, "sure", "end")));
}

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

// report/map.js
// The map of the report, with a list of the images selected with the lasso.


const LISTED = 60; // images of a selection that are shown; all paths can be copied
const ADVICE = "Point at one to see it; choose Select and draw round some to list them.";

class MapPanel extends ScatterPanel {
  constructor(data, viewer, title) {
    const { image } = data.map;
    const points = { ...data.map, cluster: image.map((one) => data.images.cluster[one]) };
    super(points, data.thumbnails.absent ? null : viewer.thumbnails, "List what is in view", {
      open: (one) => viewer.open([one], 0),
      take: (taken, where) => this.list(taken, where),
      tip: (point) => this.describe(image[point]),
    });
    this.data = data;
    this.viewer = viewer;
    this.title = title;
    this.found = make("div", { class: "found", role: "region", "aria-label": "Selected images", hidden: true, tabindex: "-1" });
    this.legend.draw(data.clusters, title, "their cards show them on the map");
    this.body = make("div", {}, note(mapSentence(data.map, ADVICE)), this.parts, this.found);
  }

  describe(image) {
    const { path, cluster, confidence } = this.data.images;
    const found = this.viewer.byId.get(cluster[image]);
    return [
      this.viewer.thumbnails.element(image, "small"),
      make("span", { class: "tip-name", text: baseName(path[image]) }),
      make("span", { class: "note", text: `${found ? this.title(found) : ""} · ${decimal(confidence[image])}` }),
      button("Enlarge", () => this.viewer.open([image], 0), { class: "quiet touch" }),
    ];
  }

  list(points, where) {
    const images = points.map((point) => this.data.map.image[point]);
    const paths = make("textarea", { readonly: true, rows: 6, "aria-label": "Paths of the selected images" });
    paths.value = images.map((image) => this.data.images.path[image]).join("\n");
    this.choose(points);
    const cut = images.length > LISTED ? `, the first ${LISTED} shown` : "";
    const copy = copyButton(`Copy ${plural(images.length, "path")}`, () => paths.value);
    this.found.replaceChildren(
      make("h3", { text: `${plural(images.length, this.data.run.kind === "rows" ? "row" : "image")} ${where}${cut}` }),
      make("div", { class: "row" }, images.length ? copy : null, button("Clear", () => this.clear())),
      this.viewer.gallery(images.slice(0, LISTED), "many"),
      ...(images.length ? [make("details", {}, make("summary", { text: "Paths" }), paths)] : []),
    );
    this.found.hidden = false;
    this.found.focus({ preventScroll: true });
  }

  clear() {
    this.found.hidden = true;
    this.choose([]);
    this.map.canvas.focus({ preventScroll: true });
  }
}

// report/thumbnails.js
// Pictures from sheets of tiles. A sheet is decoded when one of its tiles is first shown.


class Thumbnails {
  constructor(layout, sheets, images) {
    this.layout = layout;
    this.sheets = sheets;
    this.images = images;
    this.addresses = {};
    this.decoded = {};
  }

  size(image, wanted) {
    const other = wanted === "large" ? "small" : "large";
    return /** @type {const} */ ([wanted, other]).find((size) => this.layout[size] && this.images[size][image] >= 0) || null;
  }

  tiles(size) {
    const tiles = this.layout[size];
    if (!tiles) throw new Error(`the page has no ${size} pictures`);
    return tiles;
  }

  sideOf(image, wanted) {
    return this.tiles(this.size(image, wanted) ?? wanted).side;
  }

  element(image, wanted) {
    const size = this.size(image, wanted);
    if (!size) return null;
    const { sheet, column, row, rows, columns } = this.place(image, size);
    const percentOf = (at, all) => (all > 1 ? (at / (all - 1)) * 100 : 0);
    const element = make("span", { class: "picture", "data-pixelated": this.layout.pixelated });
    element.style.backgroundImage = `url(${this.address(size, sheet)})`;
    element.style.backgroundSize = `${columns * 100}% ${rows * 100}%`;
    element.style.backgroundPosition = `${percentOf(column, columns)}% ${percentOf(row, rows)}%`;
    return element;
  }

  draw(context, image, x, y, side, again) {
    const size = this.size(image, "small");
    if (!size) return false;
    const { sheet, column, row } = this.place(image, size);
    const name = `${size}${sheet}`;
    if (!this.decoded[name]) {
      this.decoded[name] = new Image();
      this.decoded[name].src = this.address(size, sheet);
      this.decoded[name].decode().then(again, () => {});
    }
    const tile = this.tiles(size).side;
    if (!this.decoded[name].complete) return false;
    context.drawImage(this.decoded[name], column * tile, row * tile, tile, tile, x, y, side, side);
    return true;
  }

  place(image, size) {
    const { count: tiles, columns, perSheet } = this.tiles(size);
    const tile = this.images[size][image];
    const sheet = Math.floor(tile / perSheet);
    const rows = Math.ceil(Math.min(perSheet, tiles - sheet * perSheet) / columns);
    return { sheet, columns, rows, column: tile % columns, row: Math.floor((tile % perSheet) / columns) };
  }

  address(size, sheet) {
    const name = `${size}${sheet}`;
    if (!this.addresses[name]) {
      const [head, body] = this.sheets[size][sheet].split(",");
      const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
      this.addresses[name] = URL.createObjectURL(new Blob([bytes], { type: head.slice(5).split(";")[0] }));
    }
    return this.addresses[name];
  }
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

// report/viewer.js
// Images of the report: one enlarged, several as buttons.


class ReportViewer extends Viewer {
  constructor(data, byId, thumbnails) {
    super();
    this.data = data;
    this.byId = byId;
    this.thumbnails = thumbnails;
  }

  draw() {
    const { image } = this;
    const { path, cluster, confidence, label } = this.data.images;
    const { names } = this.data.labels;
    const picture = this.thumbnails.element(image, "large");
    if (picture) {
      dress(picture, { role: "img", "aria-label": path[image] });
      picture.style.maxWidth = `${Math.max(14, (this.thumbnails.sideOf(image, "large") * 2.75) / 16)}rem`;
    }
    this.fill({
      picture: picture ?? note("No picture"),
      path: path[image],
      facts: [
        `${this.byId.get(cluster[image])?.name}, confidence ${decimal(confidence[image])}`,
        label[image] >= 0 ? `label ${names[label[image]] ?? label[image]}` : null,
        this.list.length > 1 ? `${this.at + 1} of ${this.list.length}` : null,
      ],
    });
  }

  gallery(images, kind) {
    return gallery(this.thumbs(images), kind);
  }

  thumbs(images) {
    const { path, confidence } = this.data.images;
    return images.map((image, at) => {
      const title = `${path[image]}, confidence ${decimal(confidence[image])}`;
      return {
        picture: this.thumbnails.element(image, "large"), name: baseName(path[image]), label: `Enlarge ${title}`, title,
        open: () => this.open(images, at),
      };
    });
  }
}

// report/page.js
// What the panels of a report share: its data, its pictures, the viewer, the cards and the map.


const FILTER_FROM = 25; // number of clusters from which a search field appears

class ReportPage {
  constructor(data, sheets) {
    this.data = data;
    this.byId = new Map(data.clusters.map((cluster) => [cluster.id, cluster]));
    this.thumbnails = new Thumbnails(data.thumbnails, sheets, data.images);
    this.viewer = new ReportViewer(data, this.byId, this.thumbnails);
    const title = (cluster) => this.title(cluster);
    this.panel = data.map.absent ? null : new MapPanel(data, this.viewer, title);
    this.cards = new Cards(data.clusters, { card: (cluster) => this.card(cluster), title, filterFrom: FILTER_FROM });
  }

  title(cluster) {
    if (cluster.named || !cluster.classes?.length) return cluster.name;
    const name = this.className(cluster.classes[0][0]);
    return /^\d+$/.test(name) ? `Class ${name}` : name;
  }

  cluster(id) {
    const cluster = this.byId.get(id);
    if (!cluster) throw new Error(`there is no cluster ${id}`);
    return cluster;
  }

  className(code) {
    return String(this.data.labels.names[code] ?? code);
  }

  card(cluster) {
    const title = this.title(cluster);
    const { purity, classes = [], labelled = 1 } = cluster;
    const parts = classes.map(([code, many]) => `${this.className(code)} ${percent(many / labelled)}`);
    return clusterCard(cluster, {
      title: make("span", { text: title }),
      facts: [title === cluster.name ? null : cluster.name, plural(cluster.size, this.data.run.kind.slice(0, -1)), percent(cluster.share)],
      empty: "Nothing was put here.",
      meters: purity === undefined ? [] : [meter("purity", purity), note(parts.join(", "))],
      galleries: [["Most typical", this.gallery(cluster.typical, "typical")], ["Least certain", this.gallery(cluster.doubtful, "doubtful")]],
      actions: this.panel && button("Show on the map", () => this.showOnMap(cluster.id), { class: "quiet", "aria-label": `Show ${title} on the map` }),
    });
  }

  gallery(images, kind) {
    return images.length ? this.viewer.gallery(images, kind) : null;
  }

  showOnMap(cluster) {
    this.panel?.legend.focus(cluster);
    find("map").scrollIntoView();
    find("map").focus({ preventScroll: true });
  }
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

// report/cleanup.js
// Images that may not belong into the set, by kind: copies beside the best image of their group, others by their figure.



function cleanupBody(page) {
  const kinds = /** @type {Kind[]} */ (page.data.cleanup);
  if (!kinds.length) return null;
  const serve = make("p", { class: "note" }, "All of them are in problems.csv. To take them out of the clusters: ",
    make("code", { text: "twincluster serve" }), ", Clean up.");
  return [serve, ...kinds.map((kind) => kindPart(page, kind))];
}

function kindPart(page, kind) {
  const { title, why, value } = KINDS[kind.kind];
  const { viewer, data } = page;
  const rows = [];
  const picture = (image) => make("td", {}, viewer.gallery([image], "one"));
  const path = (image) => make("td", { class: "path", text: data.images.path[image] });
  for (const group of kind.groups ?? []) {
    const more = group.count - group.copies.length;
    rows.push([Math.max(...group.copies.map(([, alike]) => alike)), make("tr", {}, picture(group.best), path(group.best),
      make("td", {}, viewer.gallery(group.copies.map(([image]) => image), "many"), more ? note(`and ${count(more)} more`) : null),
      make("td", { class: "figure", text: value(Math.min(...group.copies.map(([, alike]) => alike))) }))]);
  }
  for (const [image, figure] of kind.rows ?? []) {
    rows.push([figure, make("tr", {}, picture(image), path(image), make("td", { class: "figure", text: value(figure) }))]);
  }
  const shown = make("span", { role: "status", class: "note" });
  const slider = threshold(`Threshold for ${title.toLowerCase()}`, rows.map(([figure]) => figure), kind.rising, (passes) => {
    for (const [figure, row] of rows) row.hidden = !passes(figure);
    shown.textContent = `${count(rows.filter(([, row]) => !row.hidden).length)} shown`;
  });
  const head = kind.groups ? ["Best", "Path", "Copies of it", "Likeness"] : ["Image", "Path", "Value"];
  return make("details", { class: "problem" }, make("summary", {}, make("h3", { text: `${title} (${count(kind.count)})` })), note(why),
    slider ? make("div", { class: "row" }, slider, shown) : null,
    make("div", {}, make("table", { class: "suspects" },
      make("thead", {}, make("tr", {}, head.map((text) => make("th", { scope: "col", text })))), make("tbody", {}, rows.map(([, row]) => row)))),
    kind.more ? note(`and ${plural(kind.more, kind.groups ? "more group" : "more image")} in problems.csv`) : null);
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

// report/tree.js
// The tree in the report: any cut can be looked at; a command uses it.


function treeBody(page) {
  const tree = page.data.tree;
  if (!tree || tree.absent) return null;
  const one = page.data.run.kind.slice(0, -1);
  const panel = new TreePanel(tree, {
    one,
    atOnce: 9,
    nameOf: (id) => page.title(page.cluster(id)),
    thumbs: (rows) => page.viewer.thumbs(rows),
    deeds: (now) => {
      if (now.isNow) return [];
      const command = now.level === null ? tree.serve : `${tree.cut} --clusters ${now.level}`;
      return [make("span", { text: now.level === null ? "To use single branches, open and close them in the explorer:" : "To use this cut:" }),
        make("div", { class: "command" }, make("code", { text: command }), copyButton("Copy", () => command))];
    },
  });
  return [note("Fewer or more clusters, without training again. Looking at them here changes nothing."), panel.body];
}

// report/panels.js
// The panels of a report, in their order. To add one, write a function here or in a module of its own, add its line to
// PANELS and its data to report/page.py, and run `make pages`.



const PANELS = [
  { id: "clusters", title: "Clusters", body: ({ cards }) => [cards.body] },
  { id: "tree", title: "Tree of clusters", body: treeBody },
  { id: "map", title: "Map", body: ({ panel, data }) => [panel ? panel.body : note(`No map: ${data.map.absent}.`)] },
  { id: "labels", title: "Labels", body: labelsBody },
  { id: "problems", title: "Problems", body: problemsBody },
  { id: "cleanup", title: "Clean up", body: cleanupBody },
  { id: "training", title: "Training", body: trainingBody },
];

const SCORES = [
  ["ACC", "acc", "images whose cluster matches their class, clusters and classes paired in the best way"],
  ["NMI", "nmi", "how much clusters and classes tell of each other"],
  ["ARI", "ari", "pairs of images on which both agree, above chance"],
];
const EMPTY_NAMED = 40; // empty clusters that are named one by one


function labelsBody(page) {
  const { labels, run } = page.data;
  if (!labels.confusion) return null;
  const corrected = run.corrections ? "The scores are of the corrected clusters; twincluster evaluate tells those of the model." : "";
  const where = labels.scoredOn === "all" ? "the whole set" : `the ${labels.scoredOn} part`;
  const scores = SCORES.map(([name, key, meaning]) => make("div", {},
    make("dt", { text: name }),
    make("dd", { class: "figure", text: decimal(labels[key], 3) }),
    make("dd", { class: "note", text: meaning })));
  return [make("dl", { class: "scores" }, scores), note(`On ${where}. Training never saw the labels. ${corrected}`), confusionTable(page, labels.confusion)];
}

function confusionTable(page, { clusters, classes, counts, note: which }) {
  const names = classes.map((code) => page.className(code));
  const head = names.map((name) => make("th", { scope: "col", title: name }, make("span", { text: name })));
  const rows = clusters.map((id, at) => {
    const { name, short, labelled } = page.cluster(id);
    const whole = labelled || 1;
    const leader = button(short, () => page.cards.reveal(id), { class: "quiet", "aria-label": name, title: name });
    const cells = counts[at].map((many, column) => {
      const cell = make("td", { text: many ? count(many) : "", title: `${count(many)} of ${names[column]} in ${name}` });
      cell.style.setProperty("--share", String(many ? 0.08 + (0.92 * many) / whole : 0));
      if (many / whole > 0.5) cell.className = "strong";
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, leader), cells);
  });
  const order = "Rows are clusters in the order of the classes they match, columns are classes";
  const named = clusters.some((id) => page.cluster(id).named);
  return make("table", { class: `confusion${classes.length > 12 ? " dense" : ""}${named ? " named" : ""}` },
    make("caption", { class: "note", text: `${order}${which ? `; ${which}` : ""}. A full cell holds the whole cluster.` }),
    make("thead", {}, make("tr", {}, make("td", {}), head)), make("tbody", {}, rows));
}


function problemsBody(page) {
  const problems = /** @type {Problems} */ (page.data.problems);
  const { compared } = problems.alike;
  const parts = [alikePart(page, problems), ...smallParts(page, problems), unreadablePart(problems)]
    .filter((part) => part !== null);
  if (!parts.length) {
    const calm = "Nothing stands out: every file could be read, and no cluster is tiny, empty or much like another.";
    parts.push(make("p", { text: compared ? calm : "Every file could be read, and no cluster is tiny or empty." }));
  }
  if (!compared) {
    parts.push(note(`Clusters that look alike could not be looked for: ${page.data.thumbnails.absent}.`));
  }
  return parts;
}

function clusterLink(page, id) {
  const cluster = page.cluster(id);
  const title = page.title(cluster);
  return button(title === cluster.name ? title : `${title} (${cluster.short})`, () => page.cards.reveal(id), { class: "quiet" });
}

function alikePart(page, { alike: { count: many, mixed: share, cosine: least, listed } }) {
  if (!many) return null;
  const why = `Their centres are close (cosine ${decimal(least)} or more, seen from the middle of all), or ${percent(share)} `
    + "or more of their images' nearest neighbours lie in the other one. They may belong together.";
  const pairs = listed.map(({ clusters: [one, other], mixed, cosine }) => make("li", {}, clusterLink(page, one), " and ", clusterLink(page, other),
    make("span", { class: "note", text: ` ${percent(mixed)} mixed, cosine ${decimal(cosine)}` })));
  return problem(plural(many, "pair of clusters looks alike", "pairs of clusters look alike"), why, make("ul", { class: "plain" }, pairs));
}

function smallParts(page, { tiny, empty }) {
  const row = (ids) => make("p", { class: "row" }, ids.map((id) => clusterLink(page, id)));
  return [
    tiny.count ? problem(plural(tiny.count, "tiny cluster"), `Each holds less than ${percent(tiny.share)} of the average.`, row(tiny.listed)) : null,
    empty.count ? problem(plural(empty.count, "empty cluster"), "Nothing was put there: fewer clusters may be enough.", row(empty.listed.slice(0, EMPTY_NAMED))) : null,
  ];
}

function unreadablePart({ unreadable: { count: many, listed } }) {
  if (!many) return null;
  const lines = listed.map(([path, why]) =>
    make("li", {}, make("span", { class: "path", text: path }), make("span", { class: "note", text: ` ${why}` })));
  return problem(plural(many, "file could not be read", "files could not be read"), "Each keeps its row in assignments.csv, without a cluster.",
    make("ul", { class: "plain paths" }, lines), many > listed.length ? note(`and ${count(many - listed.length)} more`) : null);
}

function problem(title, why, ...body) {
  return make("details", { class: "problem" }, make("summary", {}, make("h3", { text: title })), note(why), body);
}

function trainingBody({ data }) {
  const curves = /** @type {{epochs: number[], groups: ChartGroup[], histograms: Moment[]}} */ (data.curves);
  if (!curves.groups.length) return null;
  const charts = curves.groups.map((group) => lineChart(group, curves.epochs));
  const sizes = curves.histograms.length ? sizesChart(curves.histograms) : null;
  return [make("div", {}, make("div", { class: "charts" }, charts), sizes)];
}

// report/report.js
// Builds the report from the data inside it.


const STRIP = 12; // clusters that the top of the page shows

function start() {
  const page = new ReportPage(read("data"), read("sheets"));
  fillHead(page.data);
  fillStrip(page);
  for (const { id, title, body } of PANELS) {
    const parts = body(page);
    if (!parts) continue;
    document.querySelector("main")?.append(make("section", { id, "aria-labelledby": `${id}-title`, tabindex: "-1" },
      make("h2", { id: `${id}-title`, text: title }), make("div", { id: `${id}-body` }, parts)));
    find("nav").append(make("li", {}, make("a", { href: `#${id}`, text: title })));
  }
  fillFooter(page.data);
  openForPrint();
  window.addEventListener("load", followAddress);
  return page;
}

function followAddress() {
  const [visit] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  const section = visit?.type === "navigate" ? document.getElementById(location.hash.slice(1)) : null; // after a reload the browser restores the position
  requestAnimationFrame(() => requestAnimationFrame(() => section?.scrollIntoView({ behavior: "instant" }))); // once cards have their height
}

const read = (id) => JSON.parse(String(find(id).textContent));

function fillHead({ head, confidence }) {
  find("lead").textContent = head.sentences.join(" ");
  find("facts").append(...head.facts.map(({ value, label }) =>
    make("div", {}, make("dt", { text: label }), make("dd", { class: "figure", text: value }))));
  if (head.warning) {
    find("warning").textContent = `Take care: ${head.warning}.`;
    find("warning").hidden = false;
  }
  find("next").append(...head.next.map(({ text, command }) => make("li", { text }, command
    ? make("div", { class: "command" }, make("code", { text: command }), copyButton("Copy", () => command)) : null)));
  find("sure").append(confidenceChart(confidence));
}

function fillStrip(page) {
  const { data, thumbnails, cards } = page;
  const largest = data.clusters.filter((cluster) => cluster.typical.length).sort((one, other) => other.size - one.size);
  for (const cluster of largest.slice(0, STRIP)) {
    const picture = thumbnails.element(cluster.typical[0], "large");
    if (!picture) continue;
    const name = page.title(cluster);
    const leader = button(null, () => cards.reveal(cluster.id), { class: "thumb", title: name, "aria-label": `Go to ${name}` });
    leader.append(picture);
    find("strip").append(make("li", {}, leader));
  }
  const many = find("strip").children.length;
  find("strip").style.setProperty("--many", String(many));
  find("strip").hidden = !many;
}

function fillFooter({ run, thumbnails }) {
  const facts = [
    `${plural(run.inputs, "input")} in ${run.source}`, `method ${run.method}`, `network ${run.backbone}`,
    run.epochs ? plural(run.epochs, "epoch") : null, `seed ${run.seed}`, `twincluster ${run.version}`,
  ];
  const made = Object.entries(run.made).map(([what, text]) => `${what} ${text}`);
  const pictures = thumbnails.absent ? `Without pictures: ${thumbnails.absent}.` : "Pictures are shown as the network saw them.";
  const parts = [
    note(facts.filter(Boolean).join(" · ")), made.length ? note(made.join(" · ")) : null,
    run.command ? make("p", { class: "note", text: "made by " }, make("code", { text: run.command })) : null,
    note(`${pictures} This page is one file and needs no connection.`),
  ];
  find("footer").append(...parts.filter((part) => part !== null));
}

function openForPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details")].filter((part) => !part.open);
    for (const part of opened) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
}

window.reportParts = start(); // for the console
})();
