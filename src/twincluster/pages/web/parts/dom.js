// Elements from names and text. Text is only ever set as text, so no name of a file can become markup.

/** @import { Child, Children, Properties } from "../types.js" */

const SVG = "http://www.w3.org/2000/svg";

/**
 * make("p", {class: "note", text: "..."}, child, ...); keys that start with "on" are listeners.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Properties} [properties]
 * @param {...Children} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function make(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

/**
 * The same for SVG elements.
 * @param {string} tag
 * @param {Properties} [properties]
 * @param {...Children} children
 */
export function makeSvg(tag, properties = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), properties, children);
}

/**
 * Sets properties of an element and adds children to it.
 * @template {Element} E
 * @param {E} element
 * @param {Properties} properties
 * @param {Children[]} [children]
 * @returns {E}
 */
export function dress(element, properties, children = []) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = String(value);
    else if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  const all = /** @type {Child[]} */ (children.flat(3));
  element.append(...all.filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * The element with an id, which must be there.
 * @param {string} id
 */
export function find(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`there is no element #${id}`);
  return element;
}

/** @param {number} number */
export const count = (number) => number.toLocaleString("en-GB");

/** @type {(number: number, one: string, many?: string) => string} */
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many || one + "s"}`;

/** @param {string} text */
export const capitalised = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;

/** @param {number} share */
export function percent(share) {
  if (share > 0 && share < 0.001) return "under 0.1%";
  const digits = share < 0.1 || (share > 0.995 && share < 1) ? 1 : 0;
  return `${(100 * share).toFixed(digits).replace(/\.0$/, "")}%`;
}

/**
 * .93, and 1.00; an unknown value is a dash.
 * @param {number | null | undefined} value
 */
export function decimal(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(digits).replace(/^(-?)0\./, "$1.");
}

/** @param {string} path */
export const baseName = (path) => path.split("/").pop() || path;

/** @param {string} text */
export const note = (text) => make("p", { class: "note", text });

/** @type {(text: string | null, act: (event: Event) => unknown, properties?: Properties) => HTMLButtonElement} */
export const button = (text, act, properties = {}) => make("button", { type: "button", text, onclick: act, ...properties });

/**
 * A group of buttons, one of them pressed. `choose` gets the name of the button that is clicked.
 * @param {string} label
 * @param {[name: string, text: string][]} names
 * @param {string} current
 * @param {(name: string) => unknown} choose
 */
export function choices(label, names, current, choose) {
  const buttons = names.map(([name, text]) =>
    button(text, () => choose(name), { "data-name": name, "aria-pressed": String(name === current) }));
  return make("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

/** @type {(group: HTMLElement, name: string) => void} */
export function press(group, name) {
  for (const one of group.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one.dataset.name === name));
}

/**
 * Copies text to the clipboard; a page opened as a file may have to use the old command.
 * @param {string} text
 */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make("textarea", { "aria-hidden": "true", class: "offstage" });
    area.value = text;
    (document.querySelector("dialog[open]") || document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

/**
 * A button that copies the result of `text()` and says so.
 * @param {string} label
 * @param {() => string} text
 */
export function copyButton(label, text) {
  const copy = button(label, async () => {
    copy.textContent = (await copyText(text())) ? "Copied" : "Select and copy by hand";
    setTimeout(() => { copy.textContent = label; }, 1600);
  });
  return copy;
}
