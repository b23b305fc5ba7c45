// Colours and shapes of clusters: ten colours that colour-blind people can tell apart, times five shapes.
import { makeSvg } from "./dom.js";

export const HUES = 10; // --hue-0 to --hue-9 in page.css, for both themes
const SHAPES = ["circle", "square", "triangle", "diamond", "cross"];

export const isDark = window.matchMedia("screen and (prefers-color-scheme: dark)");

/** The colours of the theme in use, for canvases. */
export function themeColours() {
  const style = getComputedStyle(document.documentElement);
  /** @param {string} name */
  const read = (name) => style.getPropertyValue(name).trim();
  const hues = Array.from({ length: HUES }, (_, hue) => read(`--hue-${hue}`));
  return { hues, ink: read("--ink"), faint: read("--faint"), surface: read("--surface") };
}

/** @param {number} cluster */
export const shapeOf = (cluster) => SHAPES[Math.floor(cluster / HUES) % SHAPES.length];

/**
 * The outline of a shape of radius r around (x, y), as points.
 * @param {string} shape
 * @param {number} x
 * @param {number} y
 * @param {number} r
 */
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

/** @type {(context: CanvasRenderingContext2D, shape: string, x: number, y: number, r: number) => void} */
export function trace(context, shape, x, y, r) {
  context.beginPath();
  if (shape === "circle") {
    context.arc(x, y, r, 0, 2 * Math.PI);
    return;
  }
  outline(shape, x, y, r).forEach(([px, py], at) => (at ? context.lineTo(px, py) : context.moveTo(px, py)));
  context.closePath();
}

/**
 * The mark of a cluster, beside its name.
 * @param {number} cluster
 */
export function swatch(cluster) {
  const [shape, hue] = [shapeOf(cluster), `hue-${cluster % HUES}`];
  const mark = shape === "circle" ? makeSvg("circle", { class: hue, cx: 7, cy: 7, r: 5 })
    : makeSvg("polygon", { class: hue, points: outline(shape, 7, 7, 4.4).map((point) => point.join(",")).join(" ") });
  return makeSvg("svg", { class: "swatch", viewBox: "0 0 14 14", width: 14, height: 14, "aria-hidden": "true" }, mark);
}
