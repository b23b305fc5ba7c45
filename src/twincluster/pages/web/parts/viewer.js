// One image, enlarged, with what is known of it; the arrow keys go through the images it was shown with.
import { make, dress, decimal, baseName, note, button, copyButton } from "./dom.js";

export class Viewer {
  constructor(dialog, data, thumbnails) {
    Object.assign(this, { dialog, data, thumbnails, list: [], at: 0 });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") this.go(1);
      else if (event.key === "ArrowLeft") this.go(-1);
    });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  }

  open(list, at) {
    Object.assign(this, { list, at });
    this.show();
    this.dialog.showModal();
  }

  go(step) {
    this.at = (this.at + step + this.list.length) % this.list.length;
    this.show();
  }

  show() {
    const image = this.list[this.at];
    const { path, cluster, confidence, label } = this.data.images;
    const picture = this.thumbnails.element(image, "large");
    if (picture) {
      dress(picture, { role: "img", "aria-label": path[image] }, []);
      picture.style.maxWidth = `${Math.max(14, (this.thumbnails.sideOf(image, "large") * 2.75) / 16)}rem`;
    }
    const names = this.data.labels.names;
    const said = [
      `${this.data.byId.get(cluster[image]).name}, confidence ${decimal(confidence[image])}`,
      label[image] >= 0 ? `label ${names[label[image]] ?? label[image]}` : null,
      this.list.length > 1 ? `${this.at + 1} of ${this.list.length}` : null,
    ];
    const step = (text, name, by) =>
      button(text, () => this.go(by), { "aria-label": name, disabled: this.list.length < 2 });
    const focused = this.dialog.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    this.dialog.replaceChildren(
      make("div", { class: "viewer-picture" }, picture || note("No picture")),
      make("p", { class: "viewer-path", id: "viewer-path", text: path[image] }),
      note(said.filter(Boolean).join(" · ")),
      make("div", { class: "row" },
        step("←", "Previous image", -1), step("→", "Next image", 1), copyButton("Copy path", () => path[image]),
        button("Close", () => this.dialog.close())),
    );
    const buttons = [...this.dialog.querySelectorAll("button")];
    buttons.find((one) => focused && one.getAttribute("aria-label") === focused)?.focus();
  }
}

/** Images as buttons that open the viewer; without pictures their names stand there. */
export function gallery(list, viewer, kind) {
  const { path, confidence } = viewer.data.images;
  const items = list.map((image, at) => {
    const picture = viewer.thumbnails.element(image, "large");
    const label = `${path[image]}, confidence ${decimal(confidence[image])}`;
    const properties = { class: picture ? "thumb" : "thumb named", "aria-label": `Enlarge ${label}`, title: label };
    const opener = button(null, () => viewer.open(list, at), properties);
    opener.append(picture || make("span", { text: baseName(path[image]) }));
    return make("li", {}, opener);
  });
  const named = list.length && !viewer.thumbnails.size(list[0], "large");
  return make("ul", { class: `gallery ${kind}${named ? " names" : ""}` }, items);
}
