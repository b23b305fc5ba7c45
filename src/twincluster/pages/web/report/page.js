// What the panels of a report share: its data, its pictures, the viewer, the cards and the map.
import { Cards, clusterCard, meter } from "../parts/cards.js";
import { button, find, make, note, percent, plural } from "../parts/dom.js";
import { MapPanel } from "./map.js";
import { Thumbnails } from "./thumbnails.js";
import { ReportViewer } from "./viewer.js";

/** @import { ReportCluster, ReportData, TileSize } from "../types.js" */

const FILTER_FROM = 25; // number of clusters from which a search field appears

export class ReportPage {
  /**
   * @param {ReportData} data
   * @param {Record<TileSize, string[]>} sheets
   */
  constructor(data, sheets) {
    this.data = data;
    this.byId = new Map(data.clusters.map((cluster) => [cluster.id, cluster]));
    this.thumbnails = new Thumbnails(data.thumbnails, sheets, data.images);
    this.viewer = new ReportViewer(data, this.byId, this.thumbnails);
    /** @type {(cluster: ReportCluster) => string} */
    const title = (cluster) => this.title(cluster);
    this.panel = data.map.absent ? null : new MapPanel(data, this.viewer, title);
    this.cards = new Cards(data.clusters, { card: (cluster) => this.card(cluster), title, filterFrom: FILTER_FROM });
  }

  /**
   * The name of a cluster: the one a person gave it, else the class of most of its images, where labels are known.
   * @param {ReportCluster} cluster
   */
  title(cluster) {
    if (cluster.named || !cluster.classes?.length) return cluster.name;
    const name = this.className(cluster.classes[0][0]);
    return /^\d+$/.test(name) ? `Class ${name}` : name;
  }

  /**
   * @param {number} id
   * @returns {ReportCluster}
   */
  cluster(id) {
    const cluster = this.byId.get(id);
    if (!cluster) throw new Error(`there is no cluster ${id}`);
    return cluster;
  }

  /** @param {number} code */
  className(code) {
    return String(this.data.labels.names[code] ?? code);
  }

  /** @param {ReportCluster} cluster */
  card(cluster) {
    const title = this.title(cluster);
    const { purity, classes = [], labelled = 1 } = cluster;
    const parts = classes.map(([code, many]) => `${this.className(code)} ${percent(many / labelled)}`);
    return clusterCard(cluster, {
      title: make("span", { text: title }),
      facts: [title === cluster.name ? null : cluster.name, plural(cluster.size, this.data.run.kind.slice(0, -1)), percent(cluster.share)],
      empty: "Nothing was put here.",
      meters: purity === undefined ? [] : [meter("purity", purity), note(parts.join(", "))],
      galleries: [["Most typical", this.gallery(cluster.typical, "typical")], ["Least certain", this.gallery(cluster.doubtful, "doubtful")]],
      actions: this.panel && button("Show on the map", () => this.showOnMap(cluster.id), { class: "quiet", "aria-label": `Show ${title} on the map` }),
    });
  }

  /** @type {(images: number[], kind: string) => HTMLElement | null} */
  gallery(images, kind) {
    return images.length ? this.viewer.gallery(images, kind) : null;
  }

  /** @param {number} cluster */
  showOnMap(cluster) {
    this.panel?.legend.focus(cluster);
    find("map").scrollIntoView();
    find("map").focus({ preventScroll: true });
  }
}
