// A few images side by side, each a button.
import { button, make } from "./dom.js";

/**
 * @typedef {object} Thumb
 * @property {HTMLElement | null} picture
 * @property {string} name  shown where there is no picture
 * @property {string} label  what the button does
 * @property {string} [title]  shown on hovering; the label where there is none
 * @property {() => unknown} open
 */

/**
 * An image as a button.
 * @param {Thumb} image
 */
export function thumb({ picture, name, label, title = label, open }) {
  const opener = button(null, open, { class: picture ? "thumb" : "thumb named", "aria-label": label, title });
  opener.append(picture || make("span", { text: name }));
  return opener;
}

/**
 * Images in rows. `kind` sets how many fit in one: "typical", "doubtful" or "many".
 * @param {Thumb[]} images
 * @param {string} kind
 * @param {string | null} label
 */
export function gallery(images, kind, label = null) {
  const named = images.length && !images[0].picture;
  const items = images.map((image) => make("li", {}, thumb(image)));
  return make("ul", { class: `gallery ${kind}${named ? " names" : ""}`, "aria-label": label }, items);
}
