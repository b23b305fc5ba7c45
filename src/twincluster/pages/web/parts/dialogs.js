// Questions: a title, some fields, one button that acts. What goes wrong is said in the dialog, which stays open.
import { make, find, count, note, button } from "./dom.js";

/** What cannot be done, in a sentence for the person who asked for it. */
export class Refusal extends Error {}

/**
 * ask({title, text, fields, action, act}): `act` may refuse by throwing, and give what is to be done once the dialog is
 * closed. Resolves then.
 */
export function ask({ title, text, fields = [], action, act }) {
  let after = null;
  const said = make("p", { class: "warning", role: "alert", hidden: true });
  const go = make("button", { type: "submit", class: "main", text: action });
  const form = make("form", {}, make("h2", { id: "asked", text: title }), text ? note(text) : null, fields, said,
    make("div", { class: "row answers" }, go, button("Cancel", () => dialog.close())));
  const dialog = make("dialog", { class: "ask", "aria-labelledby": "asked" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    said.hidden = true;
    try {
      after = await act();
      dialog.close();
    } catch (error) {
      said.textContent = error.message;
      said.hidden = false;
    }
    go.disabled = false;
  });
  return show(dialog).then(() => after?.());
}

/** A dialog that goes away when it is closed, and gives the focus back; the card it came from may be another by then. */
export function show(dialog) {
  const before = document.activeElement;
  const card = before.closest(".card")?.id;
  document.body.append(dialog);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
  const first = dialog.querySelector("[data-first]");
  first?.focus();
  first?.select?.();
  dialog.scrollTop = 0; // the first button may be below a long list
  return new Promise((done) => dialog.addEventListener("close", () => {
    dialog.remove();
    const again = before.isConnected ? before : card && find(card)?.querySelector("a");
    if (again || document.activeElement === document.body) (again || find("main")).focus({ preventScroll: true });
    done();
  }));
}

export function field(label, input) {
  return make("label", { class: "field" }, make("span", { text: label }), input);
}

export function textInput(value, properties = {}) {
  const input = make("input", { type: "text", maxlength: 200, autocomplete: "off", "data-first": true, ...properties });
  input.value = value;
  return input;
}

/** A list of clusters with a field that narrows it; `value()` is the id of the one chosen. */
export function clusterPicker(clusters, label) {
  const list = make("select", { size: 7, "aria-label": label });
  const narrow = make("input", { type: "search", autocomplete: "off", placeholder: "Find a cluster", "aria-label": "Find a cluster", "data-first": true });
  const fill = () => {
    const wanted = narrow.value.trim().toLowerCase();
    const found = clusters.filter(({ name, id }) => `${name} ${id}`.toLowerCase().includes(wanted));
    list.replaceChildren(...found.map(({ id, name, size }) => make("option", { value: id, text: `${name} (${count(size)})` })));
    if (list.options.length) list.selectedIndex = 0;
  };
  narrow.addEventListener("input", fill);
  narrow.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    list.selectedIndex = Math.max(0, Math.min(list.options.length - 1, list.selectedIndex + step));
  });
  fill();
  const value = () => {
    if (list.selectedIndex < 0) throw new Refusal("Choose a cluster.");
    return Number(list.value);
  };
  return { body: [narrow, list], value };
}

const KEYS = [
  ["arrow keys", "go through the images"], ["space", "select or leave out the image"], ["shift with arrow keys or click", "select a range"],
  ["ctrl+A", "select all"], ["escape", "select none; in a cluster: back to all clusters"], ["enter", "open the image, or the cluster"],
  ["r", "rename the cluster"], ["m", "merge clusters; with images selected: move them"], ["n", "put the selected images into a new cluster"],
  ["l", "put what is most like the selected images right after them"],
  ["s", "split the cluster, or split off the selected images"], ["j", "mark as junk, or take out of the junk"],
  ["u", "undo"], ["shift+U", "redo"], ["/", "find"], ["?", "this list"],
];

export function help() {
  const list = make("dl", { class: "keys" }, KEYS.map(([key, does]) => [make("dt", { text: key }), make("dd", { text: does })]));
  const dialog = make("dialog", { class: "ask", "aria-labelledby": "asked" }, make("h2", { id: "asked", text: "Keys" }), list,
    button("Close", () => dialog.close(), { "data-first": true }));
  return show(dialog);
}
