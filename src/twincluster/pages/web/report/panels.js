// The panels of a report, in their order. To add one, write a function here or in a module of its own, add its line to
// PANELS and its data to report/page.py, and run `make pages`.
import { button, count, decimal, make, note, percent, plural } from "../parts/dom.js";
import { lineChart, sizesChart } from "./charts.js";
import { cleanupBody } from "./cleanup.js";
import { treeBody } from "./tree.js";

/** @import { Child, Children } from "../types.js" */
/** @import { ChartGroup, Moment } from "./charts.js" */
/** @import { ReportPage } from "./page.js" */

/**
 * A section of the page. `body` returns its content, or null to omit the section.
 * @typedef {{id: string, title: string, body: (page: ReportPage) => Child[] | null}} Panel
 */

/** @type {Panel[]} */
export const PANELS = [
  { id: "clusters", title: "Clusters", body: ({ cards }) => [cards.body] },
  { id: "tree", title: "Tree of clusters", body: treeBody },
  { id: "map", title: "Map", body: ({ panel, data }) => [panel ? panel.body : note(`No map: ${data.map.absent}.`)] },
  { id: "labels", title: "Labels", body: labelsBody },
  { id: "problems", title: "Problems", body: problemsBody },
  { id: "cleanup", title: "Clean up", body: cleanupBody },
  { id: "training", title: "Training", body: trainingBody },
];

const SCORES = [
  ["ACC", "acc", "images whose cluster matches their class, clusters and classes paired in the best way"],
  ["NMI", "nmi", "how much clusters and classes tell of each other"],
  ["ARI", "ari", "pairs of images on which both agree, above chance"],
];
const EMPTY_NAMED = 40; // empty clusters that are named one by one

/** @typedef {{clusters: number[], classes: number[], counts: number[][], note: string}} Confusion */

/** @param {ReportPage} page */
function labelsBody(page) {
  const { labels, run } = page.data;
  if (!labels.confusion) return null;
  const corrected = run.corrections ? "The scores are of the corrected clusters; twincluster evaluate tells those of the model." : "";
  const where = labels.scoredOn === "all" ? "the whole set" : `the ${labels.scoredOn} part`;
  const scores = SCORES.map(([name, key, meaning]) => make("div", {},
    make("dt", { text: name }),
    make("dd", { class: "figure", text: decimal(labels[key], 3) }),
    make("dd", { class: "note", text: meaning })));
  return [make("dl", { class: "scores" }, scores), note(`On ${where}. Training never saw the labels. ${corrected}`), confusionTable(page, labels.confusion)];
}

/**
 * @param {ReportPage} page
 * @param {Confusion} confusion
 */
function confusionTable(page, { clusters, classes, counts, note: which }) {
  const names = classes.map((code) => page.className(code));
  const head = names.map((name) => make("th", { scope: "col", title: name }, make("span", { text: name })));
  const rows = clusters.map((id, at) => {
    const { name, short, labelled } = page.cluster(id);
    const whole = labelled || 1;
    const leader = button(short, () => page.cards.reveal(id), { class: "quiet", "aria-label": name, title: name });
    const cells = counts[at].map((many, column) => {
      const cell = make("td", { text: many ? count(many) : "", title: `${count(many)} of ${names[column]} in ${name}` });
      cell.style.setProperty("--share", String(many ? 0.08 + (0.92 * many) / whole : 0));
      if (many / whole > 0.5) cell.className = "strong";
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, leader), cells);
  });
  const order = "Rows are clusters in the order of the classes they match, columns are classes";
  const named = clusters.some((id) => page.cluster(id).named);
  return make("table", { class: `confusion${classes.length > 12 ? " dense" : ""}${named ? " named" : ""}` },
    make("caption", { class: "note", text: `${order}${which ? `; ${which}` : ""}. A full cell holds the whole cluster.` }),
    make("thead", {}, make("tr", {}, make("td", {}), head)), make("tbody", {}, rows));
}

/**
 * @typedef {object} Problems
 * @property {{count: number, listed: [path: string, why: string][]}} unreadable
 * @property {{count: number, share: number, listed: number[]}} tiny
 * @property {{count: number, listed: number[]}} empty
 * @property {{count: number, mixed: number, cosine: number, compared: number, listed: {clusters: [number, number], mixed: number, cosine: number}[]}} alike
 */

/** @param {ReportPage} page */
function problemsBody(page) {
  const problems = /** @type {Problems} */ (page.data.problems);
  const { compared } = problems.alike;
  const parts = [alikePart(page, problems), ...smallParts(page, problems), unreadablePart(problems)]
    .filter((part) => part !== null);
  if (!parts.length) {
    const calm = "Nothing stands out: every file could be read, and no cluster is tiny, empty or much like another.";
    parts.push(make("p", { text: compared ? calm : "Every file could be read, and no cluster is tiny or empty." }));
  }
  if (!compared) {
    parts.push(note(`Clusters that look alike could not be looked for: ${page.data.thumbnails.absent}.`));
  }
  return parts;
}

/**
 * A button that leads to the card of a cluster.
 * @param {ReportPage} page
 * @param {number} id
 */
function clusterLink(page, id) {
  const cluster = page.cluster(id);
  const title = page.title(cluster);
  return button(title === cluster.name ? title : `${title} (${cluster.short})`, () => page.cards.reveal(id), { class: "quiet" });
}

/** @type {(page: ReportPage, problems: Problems) => HTMLElement | null} */
function alikePart(page, { alike: { count: many, mixed: share, cosine: least, listed } }) {
  if (!many) return null;
  const why = `Their centres are close (cosine ${decimal(least)} or more, seen from the middle of all), or ${percent(share)} `
    + "or more of their images' nearest neighbours lie in the other one. They may belong together.";
  const pairs = listed.map(({ clusters: [one, other], mixed, cosine }) => make("li", {}, clusterLink(page, one), " and ", clusterLink(page, other),
    make("span", { class: "note", text: ` ${percent(mixed)} mixed, cosine ${decimal(cosine)}` })));
  return problem(plural(many, "pair of clusters looks alike", "pairs of clusters look alike"), why, make("ul", { class: "plain" }, pairs));
}

/** @type {(page: ReportPage, problems: Problems) => (HTMLElement | null)[]} */
function smallParts(page, { tiny, empty }) {
  /** @param {number[]} ids */
  const row = (ids) => make("p", { class: "row" }, ids.map((id) => clusterLink(page, id)));
  return [
    tiny.count ? problem(plural(tiny.count, "tiny cluster"), `Each holds less than ${percent(tiny.share)} of the average.`, row(tiny.listed)) : null,
    empty.count ? problem(plural(empty.count, "empty cluster"), "Nothing was put there: fewer clusters may be enough.", row(empty.listed.slice(0, EMPTY_NAMED))) : null,
  ];
}

/** @param {Problems} problems */
function unreadablePart({ unreadable: { count: many, listed } }) {
  if (!many) return null;
  const lines = listed.map(([path, why]) =>
    make("li", {}, make("span", { class: "path", text: path }), make("span", { class: "note", text: ` ${why}` })));
  return problem(plural(many, "file could not be read", "files could not be read"), "Each keeps its row in assignments.csv, without a cluster.",
    make("ul", { class: "plain paths" }, lines), many > listed.length ? note(`and ${count(many - listed.length)} more`) : null);
}

/** @type {(title: string, why: string, ...body: Children[]) => HTMLElement} */
function problem(title, why, ...body) {
  return make("details", { class: "problem" }, make("summary", {}, make("h3", { text: title })), note(why), body);
}

/** @param {ReportPage} page */
function trainingBody({ data }) {
  const curves = /** @type {{epochs: number[], groups: ChartGroup[], histograms: Moment[]}} */ (data.curves);
  if (!curves.groups.length) return null;
  const charts = curves.groups.map((group) => lineChart(group, curves.epochs));
  const sizes = curves.histograms.length ? sizesChart(curves.histograms) : null;
  return [make("div", {}, make("div", { class: "charts" }, charts), sizes)];
}
