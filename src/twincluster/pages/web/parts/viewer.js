// One image in a dialog. The arrow keys go through the list it was opened from.
import { button, copyButton, make, note } from "./dom.js";
import { showDialog } from "./dialogs.js";

/** @import { Child, Properties } from "../types.js" */

export class Viewer {
  constructor() {
    /** @type {number[]} */
    this.list = [];
    this.at = 0;
    /** @type {HTMLDialogElement} */
    this.dialog = make("dialog");
  }

  get image() {
    return this.list[this.at];
  }

  /**
   * Shows one image of a list.
   * @param {number[]} list
   * @param {number} at
   */
  open(list, at) {
    if (!list.length) return;
    Object.assign(this, { list, at });
    if (this.dialog.isConnected) {
      this.draw();
      return;
    }
    this.dialog = make("dialog", { id: "viewer", class: "viewer", "aria-labelledby": "viewer-path" });
    this.dialog.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !this.key(event)) return;
      event.preventDefault();
      event.stopPropagation();
    });
    this.draw();
    showDialog(this.dialog);
  }

  /**
   * Returns true if it has handled the key.
   * @param {KeyboardEvent} event
   */
  key(event) {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step) this.go(step);
    return Boolean(step);
  }

  /** @param {number} step */
  go(step) {
    this.at = (this.at + step + this.list.length) % this.list.length;
    this.draw();
  }

  /**
   * Shows `image`: subclasses look it up and call `fill`.
   * @abstract
   */
  draw() {}

  /**
   * Fills the dialog; the focus stays on the button that had it.
   * @param {object} shown
   * @param {Node} shown.picture
   * @param {string} shown.path
   * @param {(string | null)[]} shown.facts
   * @param {Child[]} [shown.actions]  buttons of the page
   * @param {Properties} [shown.closing]  of the button that closes
   * @param {Child[]} [shown.more]
   */
  fill({ picture, path, facts, actions = [], closing = {}, more = [] }) {
    const { dialog } = this;
    const alone = this.list.length < 2;
    const focused = dialog.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    dialog.replaceChildren(
      make("div", { class: "viewer-picture" }, picture),
      make("p", { class: "viewer-path", id: "viewer-path", text: path }),
      note(facts.filter(Boolean).join(" · ")),
      make("div", { class: "row" },
        button("←", () => this.go(-1), { "aria-label": "Previous image", disabled: alone }),
        button("→", () => this.go(1), { "aria-label": "Next image", disabled: alone }),
        actions, copyButton("Copy path", () => path), button("Close", () => dialog.close(), closing)),
      ...more.filter((one) => one !== null && one !== undefined),
    );
    const same = [...dialog.querySelectorAll("button")].find((one) => focused && nameOf(one) === focused);
    (same ?? /** @type {HTMLElement | null} */ (dialog.querySelector("[data-first]")))?.focus();
  }
}

/** @param {Element | null} element */
function nameOf(element) {
  return element?.getAttribute("aria-label") ?? element?.textContent;
}
