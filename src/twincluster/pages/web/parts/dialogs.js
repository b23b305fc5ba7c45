// Dialogs, and questions in them: a title, some fields, one button that acts.
import { button, make, note } from "./dom.js";

/** @import { Child, Properties } from "../types.js" */

/** The reason why something failed, in a sentence for the user. */
export class Refusal extends Error {}

/**
 * Asks in a dialog. If `act` throws, the dialog stays open and shows the message; a function that it returns is called
 * after the dialog has closed. Then the promise resolves.
 * @param {object} question
 * @param {string} question.title
 * @param {string} [question.text]
 * @param {Child[]} [question.fields]
 * @param {string} question.action  text of the button
 * @param {() => Promise<void | (() => unknown)>} question.act
 */
export async function ask({ title, text, fields = [], action, act }) {
  let after = /** @type {void | (() => unknown)} */ (undefined);
  const dialog = make("dialog", { class: "ask", "aria-labelledby": "asked" });
  const problem = make("p", { class: "warning", role: "alert", hidden: true });
  const go = make("button", { type: "submit", class: "main", text: action });
  const form = make("form", {}, make("h2", { id: "asked", text: title }), text ? note(text) : null, fields, problem,
    make("div", { class: "row answers" }, go, button("Cancel", () => dialog.close())));
  dialog.append(form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    problem.hidden = true;
    try {
      after = await act();
      dialog.close();
    } catch (error) {
      problem.textContent = messageOf(error);
      problem.hidden = false;
    }
    go.disabled = false;
  });
  await showDialog(dialog);
  return after?.();
}

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/**
 * Shows a dialog until it is closed, then returns the focus, even if the card it came from has been redrawn.
 * @param {HTMLDialogElement} dialog
 * @returns {Promise<void>}
 */
export function showDialog(dialog) {
  const before = /** @type {HTMLElement} */ (document.activeElement);
  const card = before.closest(".card")?.id;
  document.body.append(dialog);
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.showModal();
  const first = /** @type {HTMLInputElement | null} */ (dialog.querySelector("[data-first]"));
  first?.focus();
  first?.select?.();
  dialog.scrollTop = 0; // the focus may have scrolled to a button below a long list
  return new Promise((done) => dialog.addEventListener("close", () => {
    dialog.remove();
    const again = before.isConnected ? before : card && document.getElementById(card)?.querySelector("a");
    if (again || document.activeElement === document.body) {
      (again || document.querySelector("main"))?.focus({ preventScroll: true });
    }
    done();
  }));
}

/** @type {(label: string, input: HTMLElement) => HTMLLabelElement} */
export function field(label, input) {
  return make("label", { class: "field" }, make("span", { text: label }), input);
}

/** @type {(value: string, properties?: Properties) => HTMLInputElement} */
export function textInput(value, properties = {}) {
  const input = make("input", { type: "text", maxlength: 200, autocomplete: "off", "data-first": true, ...properties });
  input.value = value;
  return input;
}
