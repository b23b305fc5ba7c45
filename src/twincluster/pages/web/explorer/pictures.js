// Small pictures of rows, which the browser asks for when they come into sight, and keeps.
import { make, button } from "../parts/dom.js";

export class Pictures {
  constructor(talk) {
    this.talk = talk;
    this.drawn = new Map();
  }

  get absent() {
    return this.talk.state.pictures.absent;
  }

  address(row, kind = "thumbnail") {
    return `/api/${kind}/${row}?v=${encodeURIComponent(this.talk.state.pictures.version)}`;
  }

  /** An image element for a row; null where the run has no pictures. */
  element(row, alt = "") {
    if (this.absent) return null;
    const { pixelated } = this.talk.state.pictures;
    const picture = make("img", { class: "picture", alt, loading: "lazy", decoding: "async", draggable: "false", "data-pixelated": pixelated });
    picture.addEventListener("error", () => picture.classList.add("missing"));
    picture.src = this.address(row);
    return picture;
  }

  /** Draws a picture on the map; false while it is not there yet, and `again` is called when it is. */
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

/** A row as a button; without pictures its name stands there, or its number. */
export function thumb(app, row, label, act, name) {
  const picture = app.pictures.element(row);
  const kind = app.talk.state.run.kind === "rows" ? "Row" : "Image";
  const one = button(null, act, { class: picture ? "thumb" : "thumb named", "aria-label": label, title: label });
  one.append(picture || make("span", { text: name ?? `${kind} ${row}` }));
  return one;
}
