// Images as points of a map on a canvas: zoom, pan, point at one, draw round some.
import { make } from "./dom.js";
import { HUES, isDark, themeColours, shapeOf, trace } from "./palette.js";

const GRID = 9999; // coordinates of the data run from 0 to this
const CLOSEST = 60; // largest zoom
const REACH = 14; // pixels within which a point is meant
const FRESH = 400; // milliseconds after which a turn of the wheel is a new gesture, not a page scrolling by

export class ScatterMap {
  /** `points` has image, x and y; `tell` is called with {hover, open, lasso}, each of which takes images. */
  constructor(points, images, thumbnails, tell) {
    Object.assign(this, { points, images, thumbnails, tell });
    Object.assign(this, { mode: "move", focus: null, pictures: false, chosen: null, drawn: [] });
    const keys = "Map of the images. Arrow keys move, plus and minus zoom, 0 shows all.";
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": keys });
    this.context = this.canvas.getContext("2d");
    this.view = { scale: 1, x: 0, y: 0 };
    this.fingers = new Map();
    this.scrolled = -FRESH; // a turn of the wheel right after the page was opened is meant
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

  /** Where point i is on the canvas. */
  at(i) {
    const side = Math.min(this.width, this.height) - 40;
    const along = (whole) => Math.min(1.5 * side, whole - 40); // a screen is seldom square, and the axes mean nothing
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

  /** The points that can be seen, of the cluster in focus if there is one. */
  visible() {
    return this.points.image.map((_, i) => i).filter((i) => {
      const [x, y] = this.at(i);
      return this.counts(i) && x >= 0 && y >= 0 && x <= this.width && y <= this.height;
    });
  }

  counts(i) {
    return this.focus === null || this.images.cluster[this.points.image[i]] === this.focus;
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
    const order = this.points.image.map((_, i) => i).sort((one, other) => this.counts(one) - this.counts(other));
    for (const i of order) {
      const [x, y] = this.at(i);
      if (x < -40 || y < -40 || x > this.width + 40 || y > this.height + 40) continue;
      const cluster = this.images.cluster[this.points.image[i]];
      const bright = this.counts(i) && (!chosen || chosen.has(i));
      const side = this.pictureSide();
      context.globalAlpha = bright ? 1 : 0.5;
      context.fillStyle = bright ? hues[cluster % HUES] : faint;
      const corner = [x - side / 2, y - side / 2];
      const again = () => this.draw();
      if (this.pictures && bright && this.thumbnails.draw(context, this.points.image[i], ...corner, side, again)) {
        context.lineWidth = 2;
        context.strokeStyle = hues[cluster % HUES];
        context.strokeRect(...corner, side, side);
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

  /** The points inside the line that was drawn, of the cluster in focus if there is one. */
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
    const elsewhere = (event) => { if (event.target !== canvas) this.scrolled = event.timeStamp; };
    window.addEventListener("wheel", elsewhere, { passive: true });
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
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.up(event));
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.tell.hover(-1); });
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
      if (event.pointerType === "mouse") this.tell.hover(this.nearest(...now));
      return;
    }
    if (Math.hypot(now[0] - this.start[0], now[1] - this.start[1]) > 4) this.moved = true;
    if (this.fingers.size === 2) this.pinch(event.pointerId, before, now);
    else if (this.mode === "select") {
      this.drawn.push(now);
      this.draw();
    } else if (this.moved) this.pan(now[0] - before[0], now[1] - before[1]);
    this.fingers.set(event.pointerId, now);
    if (this.moved) this.tell.hover(-1);
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
    if (this.mode === "select" && this.drawn.length > 2 && this.moved) this.tell.lasso(this.enclosed());
    else if (!this.moved && event.type === "pointerup") {
      const point = this.nearest(event.offsetX, event.offsetY);
      if (event.pointerType === "mouse") { if (point >= 0) this.tell.open(point); } else this.tell.hover(point);
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
