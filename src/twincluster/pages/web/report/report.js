// Builds the report from the data inside it.
import { button, copyButton, find, make, note, plural } from "../parts/dom.js";
import { confidenceChart } from "./charts.js";
import { ReportPage } from "./page.js";
import { PANELS } from "./panels.js";

/** @import { ReportData } from "../types.js" */

const STRIP = 12; // clusters that the top of the page shows

function start() {
  const page = new ReportPage(read("data"), read("sheets"));
  fillHead(page.data);
  fillStrip(page);
  for (const { id, title, body } of PANELS) {
    const parts = body(page);
    if (!parts) continue;
    document.querySelector("main")?.append(make("section", { id, "aria-labelledby": `${id}-title`, tabindex: "-1" },
      make("h2", { id: `${id}-title`, text: title }), make("div", { id: `${id}-body` }, parts)));
    find("nav").append(make("li", {}, make("a", { href: `#${id}`, text: title })));
  }
  fillFooter(page.data);
  openForPrint();
  window.addEventListener("load", followAddress);
  return page;
}

/** Scrolls to the section in the address: it did not exist yet when the browser looked for it. */
function followAddress() {
  const [visit] = /** @type {PerformanceNavigationTiming[]} */ (performance.getEntriesByType("navigation"));
  const section = visit?.type === "navigate" ? document.getElementById(location.hash.slice(1)) : null; // after a reload the browser restores the position
  requestAnimationFrame(() => requestAnimationFrame(() => section?.scrollIntoView({ behavior: "instant" }))); // once cards have their height
}

/**
 * The JSON inside a script element.
 * @param {string} id
 */
const read = (id) => JSON.parse(String(find(id).textContent));

/** @param {ReportData} data */
function fillHead({ head, confidence }) {
  find("lead").textContent = head.sentences.join(" ");
  find("facts").append(...head.facts.map(({ value, label }) =>
    make("div", {}, make("dt", { text: label }), make("dd", { class: "figure", text: value }))));
  if (head.warning) {
    find("warning").textContent = `Take care: ${head.warning}.`;
    find("warning").hidden = false;
  }
  find("next").append(...head.next.map(({ text, command }) => make("li", { text }, command
    ? make("div", { class: "command" }, make("code", { text: command }), copyButton("Copy", () => command)) : null)));
  find("sure").append(confidenceChart(confidence));
}

/**
 * A typical image of each of the largest clusters, linked to its card.
 * @param {ReportPage} page
 */
function fillStrip(page) {
  const { data, thumbnails, cards } = page;
  const largest = data.clusters.filter((cluster) => cluster.typical.length).sort((one, other) => other.size - one.size);
  for (const cluster of largest.slice(0, STRIP)) {
    const picture = thumbnails.element(cluster.typical[0], "large");
    if (!picture) continue;
    const name = page.title(cluster);
    const leader = button(null, () => cards.reveal(cluster.id), { class: "thumb", title: name, "aria-label": `Go to ${name}` });
    leader.append(picture);
    find("strip").append(make("li", {}, leader));
  }
  const many = find("strip").children.length;
  find("strip").style.setProperty("--many", String(many));
  find("strip").hidden = !many;
}

/** @param {ReportData} data */
function fillFooter({ run, thumbnails }) {
  const facts = [
    `${plural(run.inputs, "input")} in ${run.source}`, `method ${run.method}`, `network ${run.backbone}`,
    run.epochs ? plural(run.epochs, "epoch") : null, `seed ${run.seed}`, `twincluster ${run.version}`,
  ];
  const made = Object.entries(run.made).map(([what, text]) => `${what} ${text}`);
  const pictures = thumbnails.absent ? `Without pictures: ${thumbnails.absent}.` : "Pictures are shown as the network saw them.";
  const parts = [
    note(facts.filter(Boolean).join(" · ")), made.length ? note(made.join(" · ")) : null,
    run.command ? make("p", { class: "note", text: "made by " }, make("code", { text: run.command })) : null,
    note(`${pictures} This page is one file and needs no connection.`),
  ];
  find("footer").append(...parts.filter((part) => part !== null));
}

/** Opens all folded sections for printing. */
function openForPrint() {
  /** @type {HTMLDetailsElement[]} */
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details")].filter((part) => !part.open);
    for (const part of opened) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
}

window.reportParts = start(); // for the console
