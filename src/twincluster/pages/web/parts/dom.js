// Elements from names and text. Text is only ever set as text, so no name of a file can become markup.
const SVG = "http://www.w3.org/2000/svg";

/** make("p", {class: "note", text: "..."}, child, ...); keys that start with "on" are listeners. */
export function make(tag, properties = {}, ...children) {
  return dress(document.createElement(tag), properties, children);
}

export function makeSvg(tag, properties = {}, ...children) {
  return dress(document.createElementNS(SVG, tag), properties, children);
}

export function dress(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return element;
}

export const find = (id) => document.getElementById(id);

export const count = (number) => number.toLocaleString("en-GB");

export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : many || one + "s"}`;

export function percent(share) {
  if (share > 0 && share < 0.001) return "under 0.1%";
  const digits = share < 0.1 || (share > 0.995 && share < 1) ? 1 : 0;
  return `${(100 * share).toFixed(digits).replace(/\.0$/, "")}%`;
}

/** .93, and 1.00; what nobody knows is a dash. */
export function decimal(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(digits).replace(/^(-?)0\./, "$1.");
}

export const baseName = (path) => path.split("/").pop() || path;

export const note = (text) => make("p", { class: "note", text });

export const button = (text, act, properties = {}) => make("button", { type: "button", text, onclick: act, ...properties });

/** A group of buttons of which one is pressed. `choose` is told the name of the one that was clicked. */
export function choices(label, names, current, choose) {
  const buttons = names.map(([name, text]) =>
    button(text, () => choose(name), { "data-name": name, "aria-pressed": String(name === current) }));
  return make("div", { class: "choices", role: "group", "aria-label": label }, buttons);
}

export function press(group, name) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.dataset.name === name));
}

/** Puts text on the clipboard, by the old way where a page from a file may not use the new one. */
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

/** A button that copies what `text()` gives and says so. */
export function copyButton(label, text) {
  const copy = button(label, async () => {
    copy.textContent = (await copyText(text())) ? "Copied" : "Select and copy by hand";
    setTimeout(() => { copy.textContent = label; }, 1600);
  });
  return copy;
}
