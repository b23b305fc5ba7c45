// The map of the images, as in the report: what is drawn round is listed below it, selected, ready to be moved.
import { make, note, button } from "../parts/dom.js";
import { ScatterMap } from "../parts/scatter.js";
import { mapTools, Legend, drawTip } from "../parts/map_tools.js";
import { ImageGrid } from "../parts/grid.js";
import { SelectionBar } from "./lists.js";

const AGAIN = 1500; // milliseconds after which a map that is not ready is asked for again

export class MapView {
  constructor(app) {
    this.app = app;
    this.said = note("");
    this.stage = make("div", {});
    this.grid = new ImageGrid(app, { open: (at) => app.viewer.open(this.grid.rows, at), changed: () => this.bar?.draw() });
    this.bar = new SelectionBar(app, this.grid, { of: "all" });
    this.found = make("div", { class: "found", hidden: true }, this.bar.body, this.grid.body);
    this.body = make("section", { class: "map-view", "aria-labelledby": "title" }, make("h2", { id: "title", class: "title", text: "Map" }), this.said, this.stage, this.found);
    this.refresh();
  }

  async refresh() {
    let data;
    try {
      data = await this.app.talk.ask("/api/map");
    } catch (error) {
      this.app.tell(error.message);
      return;
    }
    if (data.absent) {
      this.said.textContent = data.waiting ? "The map is being made …" : `No map: ${data.absent}.`;
      if (data.waiting) setTimeout(() => { if (this.body.isConnected) this.refresh(); }, AGAIN);
      return;
    }
    const placed = `${data.note}, placed by ${data.method}: ${data.meaning}.`;
    this.said.textContent = `${placed[0].toUpperCase()}${placed.slice(1)} Choose Select and draw round some to correct them.`;
    const cluster = {};
    data.image.forEach((row, at) => { cluster[row] = data.cluster[at]; });
    if (this.map) {
      Object.assign(this.map, { points: data, images: { cluster }, chosen: null });
      this.map.draw();
      this.grid.show(this.grid.rows.filter((row) => row in cluster));
      this.found.hidden = !this.grid.rows.length;
    } else this.build(data, cluster);
    this.legend.draw(this.app.talk.state.clusters, ({ name }) => name, "find them among the clusters");
  }

  build(data, cluster) {
    const { app } = this;
    this.map = new ScatterMap(data, { cluster }, app.pictures, {
      hover: (point) => this.hover(point),
      open: (point) => app.viewer.open([this.map.points.image[point]], 0),
      lasso: (points) => this.list(points),
    });
    const { map } = this;
    this.tip = make("div", { class: "tip", hidden: true });
    this.legend = new Legend(map);
    const tools = mapTools(map, !app.pictures.absent, "Select what is in view", (points) => this.list(points));
    this.stage.replaceChildren(tools, make("div", { class: "map-frame" }, map.canvas, this.tip), this.legend.body);
  }

  hover(point) {
    const { app, map } = this;
    const row = map.points.image[point];
    drawTip(this.tip, map, point, point < 0 ? [] : [
      app.pictures.element(row),
      make("span", { class: "tip-name", text: app.talk.nameOf(map.points.cluster[point]) }),
      button("Open", () => app.viewer.open([row], 0), { class: "quiet touch" }),
    ]);
  }

  list(points) {
    this.map.chosen = points.length ? points : null;
    this.map.draw();
    this.found.hidden = !points.length;
    this.grid.show(points.map((point) => this.map.points.image[point]));
    this.grid.selectAll();
    if (points.length) this.grid.body.focus();
  }

  key(event) {
    return this.bar.key(event);
  }
}
