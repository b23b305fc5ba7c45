// Pictures from sheets of tiles. A sheet is decoded when one of its tiles is first shown.
import { make } from "../parts/dom.js";

/** @import { ReportData, ThumbnailLayout, TileSize } from "../types.js" */

export class Thumbnails {
  /**
   * @param {ThumbnailLayout} layout
   * @param {Record<TileSize, string[]>} sheets  addresses by size
   * @param {ReportData["images"]} images
   */
  constructor(layout, sheets, images) {
    this.layout = layout;
    this.sheets = sheets;
    this.images = images;
    /** @type {Record<string, string>} */
    this.addresses = {};
    /** @type {Record<string, HTMLImageElement>} */
    this.decoded = {};
  }

  /**
   * The size of an image's picture, if possible the requested one; null if it has none.
   * @param {number} image
   * @param {TileSize} wanted
   * @returns {TileSize | null}
   */
  size(image, wanted) {
    const other = wanted === "large" ? "small" : "large";
    return /** @type {const} */ ([wanted, other]).find((size) => this.layout[size] && this.images[size][image] >= 0) || null;
  }

  /**
   * The tiles of a size that the page has.
   * @param {TileSize} size
   */
  tiles(size) {
    const tiles = this.layout[size];
    if (!tiles) throw new Error(`the page has no ${size} pictures`);
    return tiles;
  }

  /**
   * Pixels a side of the picture of an image that has one.
   * @param {number} image
   * @param {TileSize} wanted
   */
  sideOf(image, wanted) {
    return this.tiles(this.size(image, wanted) ?? wanted).side;
  }

  /**
   * A picture as an element that fills its container; null if there is none.
   * @param {number} image
   * @param {TileSize} wanted
   */
  element(image, wanted) {
    const size = this.size(image, wanted);
    if (!size) return null;
    const { sheet, column, row, rows, columns } = this.place(image, size);
    /** @type {(at: number, all: number) => number} */
    const percentOf = (at, all) => (all > 1 ? (at / (all - 1)) * 100 : 0);
    const element = make("span", { class: "picture", "data-pixelated": this.layout.pixelated });
    element.style.backgroundImage = `url(${this.address(size, sheet)})`;
    element.style.backgroundSize = `${columns * 100}% ${rows * 100}%`;
    element.style.backgroundPosition = `${percentOf(column, columns)}% ${percentOf(row, rows)}%`;
    return element;
  }

  /**
   * Draws a picture on a canvas; false while it is not there yet, and `again` is called when it is.
   * @type {import("../types.js").Drawable["draw"]}
   */
  draw(context, image, x, y, side, again) {
    const size = this.size(image, "small");
    if (!size) return false;
    const { sheet, column, row } = this.place(image, size);
    const name = `${size}${sheet}`;
    if (!this.decoded[name]) {
      this.decoded[name] = new Image();
      this.decoded[name].src = this.address(size, sheet);
      this.decoded[name].decode().then(again, () => {});
    }
    const tile = this.tiles(size).side;
    if (!this.decoded[name].complete) return false;
    context.drawImage(this.decoded[name], column * tile, row * tile, tile, tile, x, y, side, side);
    return true;
  }

  /** @type {(image: number, size: TileSize) => {sheet: number, columns: number, rows: number, column: number, row: number}} */
  place(image, size) {
    const { count: tiles, columns, perSheet } = this.tiles(size);
    const tile = this.images[size][image];
    const sheet = Math.floor(tile / perSheet);
    const rows = Math.ceil(Math.min(perSheet, tiles - sheet * perSheet) / columns);
    return { sheet, columns, rows, column: tile % columns, row: Math.floor((tile % perSheet) / columns) };
  }

  /**
   * One address per sheet, so that the browser decodes it once however often it is shown.
   * @param {TileSize} size
   * @param {number} sheet
   */
  address(size, sheet) {
    const name = `${size}${sheet}`;
    if (!this.addresses[name]) {
      const [head, body] = this.sheets[size][sheet].split(",");
      const bytes = Uint8Array.from(atob(body), (letter) => letter.charCodeAt(0));
      this.addresses[name] = URL.createObjectURL(new Blob([bytes], { type: head.slice(5).split(";")[0] }));
    }
    return this.addresses[name];
  }
}
