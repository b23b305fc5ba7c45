// What survives a reload of the page, for this tab and this run.

/** @import { Explorer } from "./explorer.js" */

/** @type {(app: Explorer, what: string) => string} */
const place = ({ talk }, what) => `${talk.state.pictures.version}:${what}`;

/** @type {(app: Explorer, what: string, value: unknown) => void} */
export function keep(app, what, value) {
  try {
    sessionStorage.setItem(place(app, what), JSON.stringify(value));
  } catch {
    // storage is full or not allowed: a reload starts over
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
