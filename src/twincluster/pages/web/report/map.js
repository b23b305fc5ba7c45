// The map with its buttons, its legend, the card of the point in hand and the list of what was drawn round.
import { make, plural, decimal, baseName, note, button, copyButton } from "../parts/dom.js";
import { ScatterMap } from "../parts/scatter.js";
import { mapTools, Legend, drawTip } from "../parts/map_tools.js";
import { titleOf } from "../parts/cards.js";
import { gallery } from "../parts/viewer.js";

const LISTED = 60; // images of a selection that are shown; all paths can be copied

export class MapPanel {
  constructor(data, viewer) {
    Object.assign(this, { data, viewer, one: data.run.kind === "rows" ? "row" : "image" });
    this.map = new ScatterMap(data.map, data.images, viewer.thumbnails, {
      hover: (point) => this.hover(point),
      open: (point) => viewer.open([data.map.image[point]], 0),
      lasso: (points) => this.list(points, "inside the line"),
    });
    this.tip = make("div", { class: "tip", hidden: true });
    this.frame = make("div", { class: "map-frame" }, this.map.canvas, this.tip);
    const region = { class: "found", role: "region", "aria-label": "Selected images", hidden: true, tabindex: "-1" };
    this.found = make("div", region);
    const tools = mapTools(this.map, !data.thumbnails.absent, "List what is in view", (points) => this.list(points, "in view"));
    this.legend = new Legend(this.map);
    this.legend.draw(data.clusters, (cluster) => titleOf(cluster, data.labels.names), "their cards show them on the map");
    this.body = make("div", {}, note(this.said()), tools, this.frame, this.legend.body, this.found);
  }

  said() {
    const { method, meaning, note: which } = this.data.map;
    const placed = `${which}, placed by ${method}: ${meaning}.`;
    return `${placed[0].toUpperCase()}${placed.slice(1)} Point at one to see it; choose Select and draw round some to list them.`;
  }

  hover(point) {
    drawTip(this.tip, this.map, point, point < 0 ? [] : this.described(this.data.map.image[point]));
  }

  described(image) {
    const { path, cluster, confidence } = this.data.images;
    const title = titleOf(this.data.byId.get(cluster[image]), this.data.labels.names);
    return [
      this.viewer.thumbnails.element(image, "small"),
      make("span", { class: "tip-name", text: baseName(path[image]) }),
      make("span", { class: "note", text: `${title} · ${decimal(confidence[image])}` }),
      button("Enlarge", () => this.viewer.open([image], 0), { class: "quiet touch" }),
    ];
  }

  list(points, where) {
    const images = points.map((point) => this.data.map.image[point]);
    const paths = make("textarea", { readonly: true, rows: 6, "aria-label": "Paths of the selected images" });
    paths.value = images.map((image) => this.data.images.path[image]).join("\n");
    this.map.chosen = points.length ? points : null;
    this.map.draw();
    const cut = images.length > LISTED ? `, the first ${LISTED} shown` : "";
    const copy = copyButton(`Copy ${plural(images.length, "path")}`, () => paths.value);
    this.found.replaceChildren(
      make("h3", { text: `${plural(images.length, this.one)} ${where}${cut}` }),
      make("div", { class: "row" }, images.length ? copy : null, button("Clear", () => this.clear())),
      gallery(images.slice(0, LISTED), this.viewer, "many"),
      ...(images.length ? [make("details", {}, make("summary", { text: "Paths" }), paths)] : []),
    );
    this.found.hidden = false;
    this.found.focus({ preventScroll: true });
  }

  clear() {
    this.found.hidden = true;
    this.map.chosen = null;
    this.map.draw();
    this.map.canvas.focus({ preventScroll: true });
  }
}
