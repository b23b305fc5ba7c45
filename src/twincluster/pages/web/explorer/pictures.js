// Small pictures of rows. The browser loads them when they become visible, and caches them.
import { make } from "../parts/dom.js";

/** @import { Drawable } from "../types.js" */
/** @import { Talk } from "./talk.js" */

export class Pictures {
  /** @param {Talk} talk */
  constructor(talk) {
    this.talk = talk;
    /** @type {Map<string, HTMLImageElement>} */
    this.drawn = new Map();
  }

  /** The reason why the run has no pictures; "" if it has. */
  get absent() {
    return this.talk.state.pictures.absent;
  }

  /** @param {number} row */
  address(row, kind = "thumbnail") {
    return `/api/${kind}/${row}?v=${encodeURIComponent(this.talk.state.pictures.version)}`;
  }

  /**
   * An image element for a row; null if the run has no pictures.
   * @param {number} row
   */
  element(row, alt = "") {
    if (this.absent) return null;
    const { pixelated } = this.talk.state.pictures;
    const picture = make("img", { class: "picture", alt, loading: "lazy", decoding: "async", draggable: "false", "data-pixelated": pixelated });
    picture.addEventListener("error", () => picture.classList.add("missing"));
    picture.src = this.address(row);
    return picture;
  }

  /**
   * An image for a gallery; without a picture, its name or number.
   * @param {number} row
   * @param {string} label
   * @param {() => unknown} open
   * @param {string} [name]
   */
  thumb(row, label, open, name) {
    const kind = this.talk.state.run.kind === "rows" ? "Row" : "Image";
    return { picture: this.element(row), name: name ?? `${kind} ${row}`, label, open };
  }

  /**
   * Draws a picture on the map; false while it is not there yet, and `again` is called when it is.
   * @type {Drawable["draw"]}
   */
  draw(context, row, x, y, side, again) {
    if (this.absent) return false;
    const address = this.address(row);
    let picture = this.drawn.get(address);
    if (!picture) {
      picture = new Image();
      picture.src = address;
      picture.decode().then(again, () => {});
      this.drawn.set(address, picture);
    }
    if (!picture.complete || !picture.naturalWidth) return false;
    context.drawImage(picture, x, y, side, side);
    return true;
  }
}
