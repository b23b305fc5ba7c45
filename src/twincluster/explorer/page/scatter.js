// The map of the images, as in the report: what is drawn round is listed below it, selected, ready to be moved.
"use strict";

const AGAIN = 1500; // milliseconds after which a map that is not ready is asked for again

class MapView {
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
    this.drawLegend();
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
    this.legend = make("div", { class: "legend", role: "group", "aria-label": "Show one cluster on the map" });
    const tools = mapTools(map, !app.pictures.absent, "Select what is in view", (points) => this.list(points));
    this.stage.replaceChildren(tools, make("div", { class: "map-frame" }, map.canvas, this.tip), this.legend);
  }

  drawLegend() {
    const largest = [...this.app.talk.state.clusters].sort((one, other) => other.size - one.size).slice(0, 36);
    this.legend.replaceChildren(...largest.map(({ id, name }) => {
      const key = button(null, () => {
        this.map.focus = this.map.focus === id ? null : id;
        this.map.draw();
        this.drawLegend();
      }, { "aria-pressed": String(this.map.focus === id), "data-id": id });
      key.append(swatch(id), make("span", { text: name }));
      return key;
    }));
  }

  hover(point) {
    this.tip.hidden = point < 0;
    if (point < 0) return;
    const row = this.map.points.image[point];
    const picture = this.app.pictures.element(row);
    this.tip.replaceChildren(...(picture ? [picture] : []), make("span", { class: "tip-name", text: this.app.talk.nameOf(this.map.points.cluster[point]) }));
    const [x, y] = this.map.at(point);
    this.tip.style.left = `${Math.max(4, Math.min(this.map.width - 144, x + 14))}px`;
    this.tip.style.top = `${y + 190 < this.map.height ? y + 14 : Math.max(4, y - 180)}px`;
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
