// Images of the report: one enlarged, several as buttons.
import { baseName, decimal, dress, note } from "../parts/dom.js";
import { gallery } from "../parts/gallery.js";
import { Viewer } from "../parts/viewer.js";

/** @import { ReportCluster, ReportData } from "../types.js" */
/** @import { Thumbnails } from "./thumbnails.js" */

export class ReportViewer extends Viewer {
  /**
   * @param {ReportData} data
   * @param {Map<number, ReportCluster>} byId
   * @param {Thumbnails} thumbnails
   */
  constructor(data, byId, thumbnails) {
    super();
    this.data = data;
    this.byId = byId;
    this.thumbnails = thumbnails;
  }

  /** @override */
  draw() {
    const { image } = this;
    const { path, cluster, confidence, label } = this.data.images;
    const { names } = this.data.labels;
    const picture = this.thumbnails.element(image, "large");
    if (picture) {
      dress(picture, { role: "img", "aria-label": path[image] });
      picture.style.maxWidth = `${Math.max(14, (this.thumbnails.sideOf(image, "large") * 2.75) / 16)}rem`;
    }
    this.fill({
      picture: picture ?? note("No picture"),
      path: path[image],
      facts: [
        `${this.byId.get(cluster[image])?.name}, confidence ${decimal(confidence[image])}`,
        label[image] >= 0 ? `label ${names[label[image]] ?? label[image]}` : null,
        this.list.length > 1 ? `${this.at + 1} of ${this.list.length}` : null,
      ],
    });
  }

  /**
   * Images as buttons that enlarge them.
   * @param {number[]} images
   * @param {string} kind
   */
  gallery(images, kind) {
    return gallery(this.thumbs(images), kind);
  }

  /** @param {number[]} images */
  thumbs(images) {
    const { path, confidence } = this.data.images;
    return images.map((image, at) => {
      const title = `${path[image]}, confidence ${decimal(confidence[image])}`;
      return {
        picture: this.thumbnails.element(image, "large"), name: baseName(path[image]), label: `Enlarge ${title}`, title,
        open: () => this.open(images, at),
      };
    });
  }
}
