// What a reload of the page is to keep: in this tab alone, and for this run alone.

/** @import { Explorer } from "./explorer.js" */

/** @type {(app: Explorer, what: string) => string} */
const place = ({ talk }, what) => `${talk.state.pictures.version}:${what}`;

/** @type {(app: Explorer, what: string, value: unknown) => void} */
export function keep(app, what, value) {
  try {
    sessionStorage.setItem(place(app, what), JSON.stringify(value));
  } catch {
    // full, or not allowed: a reload begins anew
  }
}

/**
 * @template T
 * @param {Explorer} app
 * @param {string} what
 * @param {T} otherwise
 * @returns {T}
 */
export function kept(app, what, otherwise) {
  try {
    return { ...otherwise, ...JSON.parse(sessionStorage.getItem(place(app, what)) ?? "{}") };
  } catch {
    return otherwise;
  }
}
