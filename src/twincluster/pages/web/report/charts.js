// Small charts of the training. Each has a text that says what it shows.
import { make, makeSvg, plural, percent, decimal, note } from "../parts/dom.js";

/** @typedef {{title: string, note: string, lines: {name: string, values: (number | null)[]}[]}} ChartGroup */
/** @typedef {{epoch: number, clusters: number, shares: number[]}} Moment */

const [WIDE, HIGH, LEFT, BOTTOM] = [340, 150, 38, 22];

/**
 * Lines over epochs.
 * @param {ChartGroup} group
 * @param {number[]} epochs
 */
export function lineChart(group, epochs) {
  const known = group.lines.flatMap(({ values }) => values.filter((value) => value !== null));
  const lastEpoch = epochs[epochs.length - 1];
  const [low, high] = [Math.min(...known, group.title === "Health" ? 0 : Infinity), Math.max(...known)];
  /** @param {number} at */
  const x = (at) => LEFT + (epochs.length > 1 ? (at / (epochs.length - 1)) * (WIDE - LEFT - 8) : (WIDE - LEFT) / 2);
  /** @param {number} value */
  const y = (value) => 8 + (1 - (value - low) / (high - low || 1)) * (HIGH - BOTTOM - 12);
  const lines = group.lines.map(({ values }, at) => {
    return stretches(values).map((stretch) => {
      const points = stretch.map(([i, value]) => [x(i).toFixed(1), y(value).toFixed(1)]);
      const [[cx, cy]] = points;
      return points.length === 1 ? makeSvg("circle", { class: `line line-${at}`, cx, cy, r: 2 })
        : makeSvg("polyline", { class: `line line-${at}`, points: points.map((point) => point.join(",")).join(" ") });
    });
  });
  /** @param {(number | null)[]} values */
  const last = (values) => values.findLast((value) => value !== null);
  /** @param {(number | null)[]} values */
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

/**
 * Runs of consecutive values with their positions; a missing epoch ends a run.
 * @param {(number | null)[]} values
 */
function stretches(values) {
  /** @type {[place: number, value: number][][]} */
  const found = [[]];
  values.forEach((value, i) => {
    const stretch = found[found.length - 1];
    if (value !== null) stretch.push([i, value]);
    else if (stretch.length) found.push([]);
  });
  return found.filter((stretch) => stretch.length);
}

/** @param {number} at */
function dash(at) {
  const line = makeSvg("line", { class: `line line-${at}`, x1: 0, y1: 4, x2: 18, y2: 4 });
  return makeSvg("svg", { viewBox: "0 0 18 8", width: 18, height: 8, "aria-hidden": "true" }, line);
}

/** @type {(low: number, high: number, y: (value: number) => number) => Element[]} */
function axis(low, high, y) {
  return [low, high].flatMap((value) => [
    makeSvg("line", { class: "axis", x1: LEFT, x2: WIDE - 8, y1: y(value), y2: y(value) }),
    tick(LEFT - 5, y(value) + 4, short(value), "end"),
  ]);
}

/** @type {(x: number, y: number, text: string | number, anchor: string) => Element} */
function tick(x, y, text, anchor) {
  return makeSvg("text", { x, y, "text-anchor": anchor, text });
}

/** @param {number | null | undefined} value */
function short(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}

/**
 * Sizes of clusters at a few moments, the largest first.
 * @param {Moment[]} histograms
 */
export function sizesChart(histograms) {
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

/** @type {(x: number, width: number, bottom: number, height: number) => Element} */
function bar(x, width, bottom, height) {
  return makeSvg("rect", { class: "bar-fill", x, y: bottom - height, width, height });
}

/**
 * Histogram of the confidence: 20 counts from 0 to 1.
 * @param {{bins: number[], mean: number | null, sure: number}} confidence
 */
export function confidenceChart({ bins, mean, sure }) {
  const top = Math.max(...bins, 1);
  const wide = 300 / bins.length;
  const bars = bins.map((many, at) => bar(at * wide + 1, wide - 2, 70, many ? Math.max(1, (68 * many) / top) : 0));
  const label = mean === null ? "No image has a cluster"
    : `Confidence of all images from 0 to 1: mean ${decimal(mean)}, ${percent(sure)} at .5 or more`;
  const line = makeSvg("line", { class: "axis", x1: 0, x2: 300, y1: 70.5, y2: 70.5 });
  return make("figure", { class: "chart" }, makeSvg("svg", { viewBox: "0 0 300 90", role: "img", "aria-label": label },
    bars, line, tick(0, 86, "unsure", "start"), tick(300, 86, "sure", "end")));
}
