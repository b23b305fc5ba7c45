// Files dropped on the page: their cluster, and the most similar images.
import { button, decimal, make, note } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";
import { messageOf, showDialog } from "../parts/dialogs.js";

/** @import { Explorer } from "./explorer.js" */

const MOST_FILES = 20;
const MOST_MEGABYTES = 40;

export class Drops {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    this.input = make("input", { type: "file", multiple: true, accept: "image/*", class: "offstage", tabindex: "-1", "aria-label": "Images to look up" });
    this.input.addEventListener("change", () => {
      const chosen = [...(this.input.files ?? [])];
      this.input.value = "";
      this.look(chosen);
    });
    this.button = button("Look up images…", () => this.input.click());
    document.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      document.body.classList.add("dropping");
    });
    document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
    document.addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      this.look([...event.dataTransfer.files]);
    });
  }

  /** @param {File[]} files */
  async look(files) {
    if (!files.length) return;
    const list = make("div", {});
    const left = files.length > MOST_FILES ? note(`The first ${MOST_FILES} of ${files.length} files.`) : null;
    const dialog = make("dialog", { class: "viewer", "aria-labelledby": "asked" }, make("h2", { id: "asked", text: "Where they belong" }), left, list,
      note("Nothing was kept: twincluster update adds images to a run."));
    dialog.append(button("Close", () => dialog.close(), { "data-first": true }));
    showDialog(dialog);
    for (const file of files.slice(0, MOST_FILES)) {
      const place = make("article", { class: "dropped" }, note(`${file.name} …`));
      list.append(place);
      place.replaceChildren(...(await this.one(file, dialog)));
    }
  }

  /**
   * Shows the result for a file.
   * @param {File} file
   * @param {HTMLDialogElement} dialog
   */
  async one(file, dialog) {
    const { app } = this;
    if (file.size > MOST_MEGABYTES * 1e6) return [note(`${file.name}: larger than ${MOST_MEGABYTES} MB.`)];
    let body;
    try {
      body = await file.arrayBuffer();
    } catch {
      return [note(`${file.name}: cannot be read. Drop files, not folders.`)];
    }
    try {
      const { cluster, confidence, neighbours, picture } = await app.talk.ask("/api/drop", { method: "POST", headers: { "content-type": "application/octet-stream" }, body });
      const name = make("a", { href: `#cluster/${cluster}`, text: app.talk.nameOf(cluster), onclick: () => dialog.close() }); // the page may already show this cluster
      return [make("img", { class: "picture", src: picture, alt: file.name }),
        make("div", {}, make("h3", {}, swatch(cluster), name), note(`${file.name} · confidence ${decimal(confidence)}`),
          app.viewer.neighbours(neighbours))];
    } catch (error) {
      return [note(`${file.name}: ${messageOf(error)}`)];
    }
  }
}
