// The map of the report, with a list of the images selected with the lasso.
import { baseName, button, copyButton, decimal, make, note, plural } from "../parts/dom.js";
import { mapSentence, ScatterPanel } from "../parts/scatter.js";

/** @import { ReportCluster, ReportData } from "../types.js" */
/** @import { ReportViewer } from "./viewer.js" */

const LISTED = 60; // images of a selection that are shown; all paths can be copied
const ADVICE = "Point at one to see it; choose Select and draw round some to list them.";

export class MapPanel extends ScatterPanel {
  /**
   * @param {ReportData} data
   * @param {ReportViewer} viewer
   * @param {(cluster: ReportCluster) => string} title
   */
  constructor(data, viewer, title) {
    const { image } = data.map;
    const points = { ...data.map, cluster: image.map((one) => data.images.cluster[one]) };
    super(points, data.thumbnails.absent ? null : viewer.thumbnails, "List what is in view", {
      open: (one) => viewer.open([one], 0),
      take: (taken, where) => this.list(taken, where),
      tip: (point) => this.describe(image[point]),
    });
    this.data = data;
    this.viewer = viewer;
    this.title = title;
    this.found = make("div", { class: "found", role: "region", "aria-label": "Selected images", hidden: true, tabindex: "-1" });
    this.legend.draw(data.clusters, title, "their cards show them on the map");
    this.body = make("div", {}, note(mapSentence(data.map, ADVICE)), this.parts, this.found);
  }

  /** @param {number} image */
  describe(image) {
    const { path, cluster, confidence } = this.data.images;
    const found = this.viewer.byId.get(cluster[image]);
    return [
      this.viewer.thumbnails.element(image, "small"),
      make("span", { class: "tip-name", text: baseName(path[image]) }),
      make("span", { class: "note", text: `${found ? this.title(found) : ""} · ${decimal(confidence[image])}` }),
      button("Enlarge", () => this.viewer.open([image], 0), { class: "quiet touch" }),
    ];
  }

  /**
   * Lists points below the map.
   * @param {number[]} points
   * @param {string} where
   */
  list(points, where) {
    const images = points.map((point) => this.data.map.image[point]);
    const paths = make("textarea", { readonly: true, rows: 6, "aria-label": "Paths of the selected images" });
    paths.value = images.map((image) => this.data.images.path[image]).join("\n");
    this.choose(points);
    const cut = images.length > LISTED ? `, the first ${LISTED} shown` : "";
    const copy = copyButton(`Copy ${plural(images.length, "path")}`, () => paths.value);
    this.found.replaceChildren(
      make("h3", { text: `${plural(images.length, this.data.run.kind === "rows" ? "row" : "image")} ${where}${cut}` }),
      make("div", { class: "row" }, images.length ? copy : null, button("Clear", () => this.clear())),
      this.viewer.gallery(images.slice(0, LISTED), "many"),
      ...(images.length ? [make("details", {}, make("summary", { text: "Paths" }), paths)] : []),
    );
    this.found.hidden = false;
    this.found.focus({ preventScroll: true });
  }

  clear() {
    this.found.hidden = true;
    this.choose([]);
    this.map.canvas.focus({ preventScroll: true });
  }
}
