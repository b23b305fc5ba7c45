// What stands round a map: its buttons, its legend, and the tip beside the point in hand.
import { make, plural, button, choices, press } from "./dom.js";
import { swatch } from "./palette.js";

const LEGEND = 36; // clusters it names

/** The buttons of a map: what dragging does, zoom, pictures where there are any, and `take`, called with what is in view. */
export function mapTools(map, hasPictures, takeText, take) {
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

/** Clusters as buttons, of which one lets its images alone stand out. */
export class Legend {
  constructor(map) {
    Object.assign(this, { map, keys: [] });
    this.body = make("div", { class: "legend", role: "group", "aria-label": "Show one cluster on the map" });
  }

  /** The largest clusters, by the names that `nameOf` gives them; `elsewhere` says where the others can be seen. */
  draw(clusters, nameOf, elsewhere) {
    const held = this.keys.find((key) => key === document.activeElement)?.dataset.id;
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
    this.keys.find((key) => key.dataset.id === held)?.focus();
    this.focus(clusters.some(({ id }) => id === this.map.focus) ? this.map.focus : null);
  }

  /** Lets one cluster stand out; null brings all back. */
  focus(id) {
    this.map.focus = id;
    for (const key of this.keys) key.setAttribute("aria-pressed", String(Number(key.dataset.id) === id));
    this.map.draw();
  }
}

/** Shows `parts` in a tip beside a point, within the map; for no point it goes away. */
export function drawTip(tip, map, point, parts) {
  tip.hidden = point < 0;
  if (point < 0) return;
  tip.replaceChildren(...parts.filter(Boolean));
  const [x, y] = map.at(point);
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${Math.max(4, Math.min(map.width - width - 4, x + 14))}px`;
  tip.style.top = `${y + height + 20 < map.height ? y + 14 : Math.max(4, y - height - 14)}px`;
}
