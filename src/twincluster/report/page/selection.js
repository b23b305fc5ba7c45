// The map with its buttons, its legend, the card of the point in hand and the list of what was drawn round.
"use strict";

const LEGEND = 36; // clusters it names
const LISTED = 60; // images of a selection that are shown; all paths can be copied

class MapPanel {
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
    this.body = make("div", {}, note(this.said()), tools, this.frame, this.legend(), this.found);
  }

  said() {
    const { method, meaning, note: which } = this.data.map;
    const placed = `${which}, placed by ${method}: ${meaning}.`;
    return `${placed[0].toUpperCase()}${placed.slice(1)} Point at one to see it; choose Select and draw round some to list them.`;
  }

  legend() {
    const names = this.data.labels.names;
    const clusters = this.data.clusters.filter((cluster) => cluster.size).sort((one, other) => other.size - one.size);
    this.keys = clusters.slice(0, LEGEND).map(({ id }, at) => {
      const key = button(null, () => this.focus(this.map.focus === id ? null : id), { "data-id": id, "aria-pressed": "false" });
      key.append(swatch(id), make("span", { text: titleOf(clusters[at], names) }));
      return key;
    });
    const rest = clusters.length - LEGEND;
    const more = `and ${plural(rest, "more cluster")}; their cards show them on the map`;
    return make("div", { class: "legend", role: "group", "aria-label": "Show one cluster on the map" },
      this.keys, rest > 0 ? make("span", { class: "note", text: more }) : null);
  }

  /** Lets one cluster stand out; null brings all back. */
  focus(id) {
    this.map.focus = id;
    for (const key of this.keys) key.setAttribute("aria-pressed", String(Number(key.dataset.id) === id));
    this.map.draw();
  }

  hover(point) {
    this.tip.hidden = point < 0;
    if (point < 0) return;
    const image = this.data.map.image[point];
    const { path, cluster, confidence } = this.data.images;
    const title = titleOf(this.data.byId.get(cluster[image]), this.data.labels.names);
    const picture = this.viewer.thumbnails.element(image, "small");
    this.tip.replaceChildren(
      ...(picture ? [picture] : []),
      make("span", { class: "tip-name", text: baseName(path[image]) }),
      make("span", { class: "note", text: `${title} · ${decimal(confidence[image])}` }),
      button("Enlarge", () => this.viewer.open([image], 0), { class: "quiet touch" }),
    );
    const [x, y] = this.map.at(point);
    const [width, height] = [this.tip.offsetWidth, this.tip.offsetHeight];
    this.tip.style.left = `${Math.max(4, Math.min(this.map.width - width - 4, x + 14))}px`;
    this.tip.style.top = `${y + height + 20 < this.map.height ? y + 14 : Math.max(4, y - height - 14)}px`;
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
