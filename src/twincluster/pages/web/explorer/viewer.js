// One image at full size, its details, and the most similar images.
import { baseName, button, count, decimal, make, note } from "../parts/dom.js";
import { messageOf } from "../parts/dialogs.js";
import { gallery } from "../parts/gallery.js";
import { Viewer } from "../parts/viewer.js";

/** @import { Row } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

export class ImageViewer extends Viewer {
  /** @param {Explorer} app */
  constructor(app) {
    super();
    this.app = app;
    /** @type {Row | null} what is known of the image, once the server has answered */
    this.row = null;
  }

  /**
   * @override
   * @param {KeyboardEvent} event
   */
  key(event) {
    const { image, row } = this;
    const { corrections } = this.app;
    if (event.key === "j" && row) this.act(() => (row.cluster === -2 ? corrections.unjunk([image]) : corrections.junk([image])));
    else if (event.key === "m" && row) this.act(() => corrections.move([image], row.cluster));
    else if (event.key === "c" && row) this.act(() => corrections.confirm([image]));
    else if (event.key === "u") this.act(() => corrections.undo());
    else return super.key(event);
    return true;
  }

  /** @param {() => unknown} deed */
  async act(deed) {
    await deed();
    if (this.dialog.isConnected) this.draw();
  }

  /** @override */
  async draw() {
    const { app, image } = this;
    /** @type {Row} */
    let row = { row: image, path: String(image), cluster: -1, status: "", confidence: null };
    try {
      [row] = await app.talk.ask(`/api/details?rows=${image}`);
    } catch (error) {
      row.status = messageOf(error);
    }
    if (image !== this.image) return;
    this.row = row;
    const near = make("div", { class: "near" }, note("Looking for the nearest images …"));
    this.fill({
      picture: this.picture(row),
      path: row.path,
      facts: [
        app.talk.nameOf(row.cluster), row.confidence === null ? null : `confidence ${decimal(row.confidence)}`, row.example ? "placed by you" : null,
        `${count(this.at + 1)} of ${count(this.list.length)}`,
      ],
      actions: this.actions(row),
      closing: { "data-first": true },
      more: [make("h3", { text: "Most like it" }), near],
    });
    await this.showNeighbours(image, near);
  }

  /** @param {Row} row */
  picture({ row, path, cluster, status }) {
    const { pictures, talk } = this.app;
    if (pictures.absent || cluster === -1) return note(status === "ok" ? "No picture" : status || "No picture");
    const address = pictures.address(row, "image");
    return make("a", { href: address, target: "_blank", rel: "noopener", title: "Open in a tab of its own" },
      make("img", { class: "whole", src: address, alt: path, "data-pixelated": talk.state.pictures.pixelated }));
  }

  /** @param {Row} row */
  actions({ row, cluster }) {
    const { corrections } = this.app;
    if (cluster === -1) return [];
    return [
      button("Move…", () => this.act(() => corrections.move([row], cluster))),
      button("This is right", () => this.act(() => corrections.confirm([row]))),
      cluster === -2 ? button("Not junk", () => this.act(() => corrections.unjunk([row])))
        : button("Junk", () => this.act(() => corrections.junk([row]))),
    ];
  }

  /**
   * @param {number} image
   * @param {HTMLElement} place
   */
  async showNeighbours(image, place) {
    try {
      const { neighbours, absent } = await this.app.talk.ask(`/api/neighbours/${image}`);
      place.replaceChildren(absent ? note(`None to show: ${absent}.`) : this.neighbours(neighbours));
    } catch (error) {
      place.replaceChildren(note(messageOf(error)));
    }
  }

  /**
   * Similar rows, as buttons that open them.
   * @param {Row[]} rows
   */
  neighbours(rows) {
    const { talk, pictures } = this.app;
    const numbers = rows.map(({ row }) => row);
    return gallery(rows.map(({ row, path, cluster, cosine }, at) => {
      const label = `${path ?? `Image ${row}`}${cluster === undefined ? "" : `, ${talk.nameOf(cluster)}`}, cosine ${decimal(cosine)}`;
      return pictures.thumb(row, label, () => this.open(numbers, at), path && baseName(path));
    }), "many", "Most like it");
  }
}
