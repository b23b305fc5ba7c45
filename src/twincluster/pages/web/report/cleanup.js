// Images that may not belong into the set, by kind: copies beside the best image of their group, others by their figure.
import { count, make, note, plural } from "../parts/dom.js";
import { KINDS, threshold } from "../parts/suspects.js";

/** @import { ReportPage } from "./page.js" */

/**
 * @typedef {[image: number, value: number]} Suspect
 * @typedef {{kind: string, count: number, more: number, rising: boolean, rows?: Suspect[], groups?: {best: number, count: number, copies: Suspect[]}[]}} Kind
 */

/** @param {ReportPage} page */
export function cleanupBody(page) {
  const kinds = /** @type {Kind[]} */ (page.data.cleanup);
  if (!kinds.length) return null;
  const serve = make("p", { class: "note" }, "All of them are in problems.csv. To take them out of the clusters: ",
    make("code", { text: "twincluster serve" }), ", Clean up.");
  return [serve, ...kinds.map((kind) => kindPart(page, kind))];
}

/** @type {(page: ReportPage, kind: Kind) => HTMLElement} */
function kindPart(page, kind) {
  const { title, why, value } = KINDS[kind.kind];
  const { viewer, data } = page;
  /** @type {[value: number, row: HTMLElement][]} */
  const rows = [];
  /** @type {(image: number) => HTMLElement} */
  const picture = (image) => make("td", {}, viewer.gallery([image], "one"));
  /** @type {(image: number) => HTMLElement} */
  const path = (image) => make("td", { class: "path", text: data.images.path[image] });
  for (const group of kind.groups ?? []) {
    const more = group.count - group.copies.length;
    rows.push([Math.max(...group.copies.map(([, alike]) => alike)), make("tr", {}, picture(group.best), path(group.best),
      make("td", {}, viewer.gallery(group.copies.map(([image]) => image), "many"), more ? note(`and ${count(more)} more`) : null),
      make("td", { class: "figure", text: value(Math.min(...group.copies.map(([, alike]) => alike))) }))]);
  }
  for (const [image, figure] of kind.rows ?? []) {
    rows.push([figure, make("tr", {}, picture(image), path(image), make("td", { class: "figure", text: value(figure) }))]);
  }
  const shown = make("span", { role: "status", class: "note" });
  const slider = threshold(`Threshold for ${title.toLowerCase()}`, rows.map(([figure]) => figure), kind.rising, (passes) => {
    for (const [figure, row] of rows) row.hidden = !passes(figure);
    shown.textContent = `${count(rows.filter(([, row]) => !row.hidden).length)} shown`;
  });
  const head = kind.groups ? ["Best", "Path", "Copies of it", "Likeness"] : ["Image", "Path", "Value"];
  return make("details", { class: "problem" }, make("summary", {}, make("h3", { text: `${title} (${count(kind.count)})` })), note(why),
    slider ? make("div", { class: "row" }, slider, shown) : null,
    make("div", {}, make("table", { class: "suspects" },
      make("thead", {}, make("tr", {}, head.map((text) => make("th", { scope: "col", text })))), make("tbody", {}, rows.map(([, row]) => row)))),
    kind.more ? note(`and ${plural(kind.more, kind.groups ? "more group" : "more image")} in problems.csv`) : null);
}
