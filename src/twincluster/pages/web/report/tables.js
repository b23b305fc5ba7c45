// What labels say, and what deserves a second look.
import { make, count, plural, percent, decimal, note, button } from "../parts/dom.js";
import { titleOf } from "../parts/cards.js";
import { gallery } from "../parts/viewer.js";

const SCORES = [
  ["ACC", "acc", "images whose cluster matches their class, clusters and classes paired in the best way"],
  ["NMI", "nmi", "how much clusters and classes tell of each other"],
  ["ARI", "ari", "pairs of images on which both agree, above chance"],
];
const EMPTY_NAMED = 40; // empty clusters that are named one by one

export function labelsPart(data, cards) {
  const { labels } = data;
  const corrected = data.run.corrections ? "The scores are of the corrected clusters; twincluster evaluate tells those of the model." : "";
  const where = labels.scoredOn === "all" ? "the whole set" : `the ${labels.scoredOn} part`;
  const scores = SCORES.map(([name, key, meaning]) => make("div", {},
    make("dt", { text: name }),
    make("dd", { class: "figure", text: decimal(labels[key], 3) }),
    make("dd", { class: "note", text: meaning })));
  return [make("dl", { class: "scores" }, scores), note(`On ${where}. Training never saw the labels. ${corrected}`), confusionTable(data, cards)];
}

function confusionTable(data, cards) {
  const { clusters, classes, counts, note: which } = data.labels.confusion;
  const names = classes.map((code) => String(data.labels.names[code] ?? code));
  const head = names.map((name) => make("th", { scope: "col", title: name }, make("span", { text: name })));
  const rows = clusters.map((id, at) => {
    const { name, short, labelled } = data.byId.get(id);
    const whole = labelled || 1;
    const leader = button(short, () => cards.reveal(id), { class: "quiet", "aria-label": name, title: name });
    const cells = counts[at].map((many, column) => {
      const cell = make("td", { text: many ? count(many) : "", title: `${count(many)} of ${names[column]} in ${name}` });
      cell.style.setProperty("--share", many ? 0.08 + (0.92 * many) / whole : 0);
      if (many / whole > 0.5) cell.className = "strong";
      return cell;
    });
    return make("tr", {}, make("th", { scope: "row" }, leader), cells);
  });
  const order = "Rows are clusters in the order of the classes they match, columns are classes";
  const named = clusters.some((id) => data.byId.get(id).named);
  return make("table", { class: `confusion${classes.length > 12 ? " dense" : ""}${named ? " named" : ""}` },
    make("caption", { class: "note", text: `${order}${which ? `; ${which}` : ""}. A full cell holds the whole cluster.` }),
    make("thead", {}, make("tr", {}, make("td", {}), head)), make("tbody", {}, rows));
}

export function problemsPart(data, viewer, cards) {
  const link = (id) => {
    const cluster = data.byId.get(id);
    const title = titleOf(cluster, data.labels.names);
    return button(title === cluster.name ? title : `${title} (${cluster.short})`, () => cards.reveal(id), { class: "quiet" });
  };
  const parts = [
    alikePart(data.problems.alike, link), ...smallParts(data.problems, link), duplicatesPart(data, viewer),
    unreadablePart(data.problems.unreadable),
  ].filter(Boolean);
  if (!parts.length) {
    const calm = "Nothing stands out: every file could be read, and no cluster is tiny, empty or much like another.";
    parts.push(make("p", { text: data.problems.duplicates.compared ? calm : "Every file could be read, and no cluster is tiny or empty." }));
  }
  if (!data.problems.duplicates.compared) {
    parts.push(note(`Near-duplicates and clusters that look alike could not be looked for: ${data.thumbnails.absent}.`));
  }
  return parts;
}

function alikePart({ count: many, mixed: share, cosine: least, listed }, link) {
  if (!many) return null;
  const why = `Their centres are close (cosine ${decimal(least)} or more, seen from the middle of all), or ${percent(share)} `
    + "or more of their images' nearest neighbours lie in the other one. They may belong together.";
  const pairs = listed.map(({ clusters: [one, other], mixed, cosine }) => make("li", {}, link(one), " and ", link(other),
    make("span", { class: "note", text: ` ${percent(mixed)} mixed, cosine ${decimal(cosine)}` })));
  return problem(plural(many, "pair of clusters looks alike", "pairs of clusters look alike"), why, make("ul", { class: "plain" }, pairs));
}

function smallParts({ tiny, empty }, link) {
  const row = (ids) => make("p", { class: "row" }, ids.map(link));
  return [
    tiny.count && problem(plural(tiny.count, "tiny cluster"), `Each holds less than ${percent(tiny.share)} of the average.`, row(tiny.listed)),
    empty.count && problem(plural(empty.count, "empty cluster"), "Nothing was put there: fewer clusters may be enough.", row(empty.listed.slice(0, EMPTY_NAMED))),
  ];
}

function duplicatesPart(data, viewer) {
  const { count: many, compared, cosine, difference, listed } = data.problems.duplicates;
  if (!many) return null;
  const pictures = difference ? `, and pictures that differ by less than ${percent(difference)} at 16 pixels a side` : "";
  const left = compared < data.run.readable - data.run.unseen ? "evenly chosen" : "those that are still there";
  const among = `Looked for among ${count(compared)} of ${count(data.run.readable)} ${data.run.kind}, ${left}.`;
  const why = `Cosine of the features ${decimal(cosine, cosine > 0.99 ? 6 : 2)} or more${pictures}. ${compared < data.run.readable ? among : ""}`;
  const groups = listed.map(({ count: all, images }) => make("div", { class: "group" }, gallery(images, viewer, "many"),
    all > images.length ? note(`and ${all - images.length} more`) : null));
  return problem(plural(many, "group of near-duplicates", "groups of near-duplicates"), why, groups,
    many > listed.length ? note(`and ${plural(many - listed.length, "more group")}`) : null);
}

function unreadablePart({ count: many, listed }) {
  if (!many) return null;
  const lines = listed.map(([path, why]) =>
    make("li", {}, make("span", { class: "path", text: path }), make("span", { class: "note", text: ` ${why}` })));
  return problem(plural(many, "file could not be read", "files could not be read"), "Each keeps its row in assignments.csv, without a cluster.",
    make("ul", { class: "plain paths" }, lines), many > listed.length ? note(`and ${count(many - listed.length)} more`) : null);
}

function problem(title, why, ...body) {
  return make("details", { class: "problem" }, make("summary", {}, make("h3", { text: title })), note(why), body);
}
