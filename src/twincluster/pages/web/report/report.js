// Puts the page together from its data.
import { make, find, plural, note, button, copyButton } from "../parts/dom.js";
import { Cards, titleOf } from "../parts/cards.js";
import { labelsPart, problemsPart } from "./tables.js";
import { Viewer } from "../parts/viewer.js";
import { lineChart, sizesChart, confidenceChart } from "./charts.js";
import { MapPanel } from "./map.js";
import { Thumbnails } from "./thumbnails.js";

const STRIP = 12; // clusters that the top of the page shows

function start() {
  const data = JSON.parse(find("data").textContent);
  data.byId = new Map(data.clusters.map((cluster) => [cluster.id, cluster]));
  const thumbnails = new Thumbnails(data.thumbnails, JSON.parse(find("sheets").textContent), data.images);
  const viewer = new Viewer(find("viewer"), data, thumbnails);
  const panel = data.map.absent ? null : new MapPanel(data, viewer);
  const cards = new Cards(data, viewer, panel && ((id) => {
    panel.legend.focus(id);
    find("map").scrollIntoView();
    find("map").focus({ preventScroll: true });
  }));
  fillHead(data);
  fillStrip(data, thumbnails, cards);
  find("clusters-body").append(cards.body);
  find("map-body").append(panel ? panel.body : note(`No map: ${data.map.absent}.`));
  find("problems-body").append(...problemsPart(data, viewer, cards));
  if (data.labels.confusion) find("labels-body").append(...labelsPart(data, cards));
  else find("labels").remove();
  if (data.curves.groups.length) find("training-body").append(trainingPart(data));
  else find("training").remove();
  find("nav").append(...[...document.querySelectorAll("main > section")].map((section) =>
    make("li", {}, make("a", { href: `#${section.id}`, text: section.querySelector("h2").textContent }))));
  fillFooter(data);
  openForPrint();
  return { data, viewer, cards, panel };
}

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

/** A typical image of each of the largest clusters, which leads to its card. */
function fillStrip(data, thumbnails, cards) {
  const largest = data.clusters.filter((cluster) => cluster.typical.length).sort((one, other) => other.size - one.size);
  for (const cluster of largest.slice(0, STRIP)) {
    const picture = thumbnails.element(cluster.typical[0], "large");
    if (!picture) continue;
    const name = titleOf(cluster, data.labels.names);
    const leader = button(null, () => cards.reveal(cluster.id), { class: "thumb", title: name, "aria-label": `Go to ${name}` });
    leader.append(picture);
    find("strip").append(make("li", {}, leader));
  }
  const many = find("strip").children.length;
  find("strip").style.setProperty("--many", many);
  find("strip").hidden = !many;
}

function trainingPart({ curves }) {
  const charts = curves.groups.map((group) => lineChart(group, curves.epochs));
  const sizes = curves.histograms.length ? sizesChart(curves.histograms) : null;
  return make("div", {}, make("div", { class: "charts" }, charts), sizes);
}

function fillFooter({ run, thumbnails }) {
  const said = [
    `${plural(run.inputs, "input")} in ${run.source}`, `method ${run.method}`, `network ${run.backbone}`,
    run.epochs ? plural(run.epochs, "epoch") : null, `seed ${run.seed}`, `twincluster ${run.version}`,
  ];
  const made = Object.entries(run.made).map(([what, text]) => `${what} ${text}`);
  const pictures = thumbnails.absent ? `Without pictures: ${thumbnails.absent}.` : "Pictures are shown as the network saw them.";
  const parts = [
    note(said.filter(Boolean).join(" · ")), made.length ? note(made.join(" · ")) : null,
    run.command ? make("p", { class: "note", text: "made by " }, make("code", { text: run.command })) : null,
    note(`${pictures} This page is one file and needs no connection.`),
  ];
  find("footer").append(...parts.filter(Boolean));
}

/** On paper everything that folds is open. */
function openForPrint() {
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const part of opened) part.open = true;
  });
  window.addEventListener("afterprint", () => { for (const part of opened) part.open = false; });
}

window.reportParts = start(); // for the console
