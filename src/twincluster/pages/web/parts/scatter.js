// A map of images: points on a canvas to zoom, pan, hover and select with a lasso, with buttons, legend and tooltip.
import { button, capitalised, choices, make, plural, press } from "./dom.js";
import { HUES, isDark, shapeOf, swatch, themeColours, trace } from "./palette.js";

/** @import { Child, Cluster, Drawable, Points } from "../types.js" */

/**
 * Functions that a page provides for its map.
 * @typedef {object} Uses
 * @property {(image: number) => unknown} open
 * @property {(points: number[], where: string) => unknown} take  with the points that are drawn round, or in view
 * @property {(point: number) => Child[]} tip  what stands beside a point
 */

const LEGEND = 36; // clusters in the legend
const GRID = 9999; // coordinates of the data run from 0 to this
const CLOSEST = 60; // largest zoom
const REACH = 14; // pixels within which a click selects a point
const FRESH = 400; // milliseconds after which the wheel starts a new gesture, instead of scrolling the page

/** A map with its controls. */
export class ScatterPanel {
  /**
   * @param {Points} points
   * @param {Drawable | null} pictures
   * @param {string} takeText  of the button that takes what is in view
   * @param {Uses} uses
   */
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

  /**
   * Highlights some points; without any, shows all alike.
   * @param {number[]} points
   */
  choose(points) {
    this.map.chosen = points.length ? points : null;
    this.map.draw();
  }

  /**
   * Shows the tooltip beside a point, within the map; -1 hides it.
   * @param {number} point
   */
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

/**
 * The description of a map and its controls.
 * @param {Points} points
 * @param {string} advice
 */
export function mapSentence({ note: which, method, meaning }, advice) {
  return `${capitalised(`${which}, placed by ${method}: ${meaning}.`)} ${advice}`;
}

/**
 * The buttons of a map: mode of dragging, zoom, pictures if there are any, and `take`, called with the visible points.
 * @param {ScatterMap} map
 * @param {boolean} hasPictures
 * @param {string} takeText
 * @param {(points: number[]) => unknown} take
 */
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

/** Clusters as buttons; pressing one highlights its images. */
class Legend {
  /** @param {ScatterMap} map */
  constructor(map) {
    this.map = map;
    /** @type {HTMLButtonElement[]} */
    this.keys = [];
    this.body = make("div", { class: "legend", role: "group", "aria-label": "Show one cluster on the map" });
  }

  /**
   * Draws the largest clusters; `elsewhere` says where to see the others.
   * @template {Cluster} C
   * @param {C[]} clusters
   * @param {(cluster: C) => string} nameOf
   * @param {string} elsewhere
   */
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

  /**
   * Highlights one cluster; null shows all alike.
   * @param {number | null} id
   */
  focus(id) {
    this.map.focus = id;
    for (const key of this.keys) key.setAttribute("aria-pressed", String(Number(key.dataset.id) === id));
    this.map.draw();
  }
}

/** The points on their canvas. */
class ScatterMap {
  /**
   * @param {Points} points
   * @param {Drawable | null} drawable
   * @param {{hover: (point: number) => unknown, open: (point: number) => unknown, lasso: (points: number[]) => unknown}} uses
   */
  constructor(points, drawable, uses) {
    this.points = points;
    this.drawable = drawable;
    this.uses = uses;
    this.mode = "move";
    this.pictures = false; // whether pictures are drawn instead of shapes
    /** @type {number | null} the cluster that stands out */
    this.focus = null;
    /** @type {number[] | null} points that stand out */
    this.chosen = null;
    /** @type {[number, number][]} the line being drawn */
    this.drawn = [];
    this.width = this.height = 0;
    this.waiting = this.moved = false;
    const keys = "Map of the images. Arrow keys move, plus and minus zoom, 0 shows all.";
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": keys });
    this.context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    this.view = { scale: 1, x: 0, y: 0 };
    /** @type {Map<number, [number, number]>} pointers that are down */
    this.fingers = new Map();
    /** @type {[number, number]} */
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

  /**
   * Position of point i on the canvas.
   * @param {number} i
   * @returns {[number, number]}
   */
  at(i) {
    const side = Math.min(this.width, this.height) - 40;
    /** @param {number} whole */
    const along = (whole) => Math.min(1.5 * side, whole - 40); // screens are seldom square, and the axes have no meaning
    return [
      this.width / 2 + (this.points.x[i] / GRID - 0.5) * along(this.width) * this.view.scale + this.view.x,
      this.height / 2 + (this.points.y[i] / GRID - 0.5) * along(this.height) * this.view.scale + this.view.y,
    ];
  }

  /** @param {number} factor */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(CLOSEST, Math.max(0.7, this.view.scale * factor));
    const real = scale / this.view.scale;
    this.view.x = (this.view.x + this.width / 2 - x) * real + x - this.width / 2;
    this.view.y = (this.view.y + this.height / 2 - y) * real + y - this.height / 2;
    this.view.scale = scale;
    this.draw();
  }

  /** @type {(x: number, y: number) => void} */
  pan(x, y) {
    this.view.x += x;
    this.view.y += y;
    this.draw();
  }

  reset() {
    this.view = { scale: 1, x: 0, y: 0 };
    this.draw();
  }

  /** The points that can be seen, of the cluster in focus if there is one. */
  visible() {
    return this.points.image.map((_, i) => i).filter((i) => {
      const [x, y] = this.at(i);
      return this.counts(i) && x >= 0 && y >= 0 && x <= this.width && y <= this.height;
    });
  }

  /**
   * Whether point i belongs to the cluster in focus.
   * @param {number} i
   */
  counts(i) {
    return this.focus === null || this.points.cluster[i] === this.focus;
  }

  /**
   * The point at a position, or -1.
   * @param {number} x
   * @param {number} y
   */
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

  /** @param {string} ink */
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

  /** The points inside the lasso, of the cluster in focus if there is one. */
  enclosed() {
    /** @type {(x: number, y: number) => boolean} */
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

  /** @param {PointerEvent} event */
  down(event) {
    this.fingers.set(event.pointerId, [event.offsetX, event.offsetY]);
    this.canvas.setPointerCapture(event.pointerId);
    this.start = [event.offsetX, event.offsetY];
    this.moved = false;
    if (this.mode === "select" && this.fingers.size === 1) this.drawn = [this.start];
  }

  /** @param {PointerEvent} event */
  move(event) {
    /** @type {[number, number]} */
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

  /** @type {(id: number, before: [number, number], now: [number, number]) => void} */
  pinch(id, before, now) {
    const [other] = [...this.fingers].filter(([finger]) => finger !== id).map(([, place]) => place);
    /** @param {[number, number]} one */
    const apart = (one) => Math.max(10, Math.hypot(one[0] - other[0], one[1] - other[1]));
    this.drawn = [];
    this.pan((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
    this.zoom(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  }

  /** @param {PointerEvent} event */
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

  /** @param {KeyboardEvent} event */
  key(event) {
    /** @type {Record<string, [number, number]>} */
    const steps = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    if (steps[event.key]) this.pan(...steps[event.key]);
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.reset();
    else return;
    event.preventDefault();
  }
}
