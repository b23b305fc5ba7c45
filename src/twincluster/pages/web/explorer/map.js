// The map of the images, as in the report. Images selected with the lasso are listed below it.
import { messageOf } from "../parts/dialogs.js";
import { button, make, note } from "../parts/dom.js";
import { mapSentence, ScatterPanel } from "../parts/scatter.js";
import { SelectionGrid } from "./lists.js";

/** @import { Points } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

const AGAIN = 1500; // milliseconds after which a map that is not ready is requested again

export class MapView {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    this.text = note("");
    this.stage = make("div", {});
    this.list = new SelectionGrid(app, { of: "all" });
    this.found = make("div", { class: "found", hidden: true }, this.list.bar, this.list.grid.body);
    this.body = make("section", { class: "map-view", "aria-labelledby": "title" },
      make("h2", { id: "title", class: "title", text: "Map" }), this.text, this.stage, this.found);
    /** @type {ScatterPanel | null} once the server has made the map */
    this.panel = null;
    this.refresh();
  }

  async refresh() {
    /** @type {Points & {absent?: string, waiting?: boolean}} */
    let points;
    try {
      points = await this.app.talk.ask("/api/map");
    } catch (error) {
      this.app.tell(messageOf(error));
      return;
    }
    if (points.absent) {
      this.text.textContent = points.waiting ? "The map is being made …" : `No map: ${points.absent}.`;
      if (points.waiting) setTimeout(() => { if (this.body.isConnected) this.refresh(); }, AGAIN);
      return;
    }
    this.text.textContent = mapSentence(points, "Choose Select and draw round some to correct them.");
    this.panel ??= this.build(points);
    const { map } = this.panel;
    if (map.points !== points) {
      const there = new Set(points.image);
      map.points = points;
      this.panel.choose([]);
      this.list.grid.show(this.list.grid.rows.filter((row) => there.has(row)));
      this.found.hidden = !this.list.grid.rows.length;
    }
    this.panel.legend.draw(this.app.talk.state.clusters, ({ name }) => name, "find them among the clusters");
  }

  /** @param {Points} points */
  build(points) {
    const { pictures, viewer } = this.app;
    const panel = new ScatterPanel(points, pictures.absent ? null : pictures, "Select what is in view", {
      open: (row) => viewer.open([row], 0),
      take: (taken) => this.take(taken),
      tip: (point) => this.describe(point),
    });
    this.stage.replaceChildren(...panel.parts);
    return panel;
  }

  /** @param {number} point */
  describe(point) {
    const { image, cluster } = /** @type {ScatterPanel} */ (this.panel).map.points;
    return [
      this.app.pictures.element(image[point]),
      make("span", { class: "tip-name", text: this.app.talk.nameOf(cluster[point]) }),
      button("Open", () => this.app.viewer.open([image[point]], 0), { class: "quiet touch" }),
    ];
  }

  /** @param {number[]} points */
  take(points) {
    const { panel, list: { grid } } = this;
    if (!panel) return;
    panel.choose(points);
    this.found.hidden = !points.length;
    grid.show(points.map((point) => panel.map.points.image[point]));
    grid.selectAll();
    if (points.length) grid.body.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    return this.list.key(event);
  }
}
