// All clusters as cards, as in the report, to be opened, renamed, and chosen to be merged.
import { make, find, plural, percent, note, button } from "../parts/dom.js";
import { swatch } from "../parts/palette.js";
import { Cards, meter } from "../parts/cards.js";
import { thumb } from "./pictures.js";

class ClusterCards extends Cards {
  get filterFrom() {
    return 2;
  }

  card(cluster) {
    const { app } = this.viewer;
    const chosen = make("input", { type: "checkbox", "aria-label": `Choose ${cluster.name}`, onchange: () => app.choose(cluster.id, chosen.checked) });
    chosen.checked = app.chosen.has(cluster.id);
    const name = make("a", { href: `#cluster/${cluster.id}`, text: cluster.name });
    const card = make("article", { class: "card", id: `cluster-${cluster.id}`, "data-id": cluster.id },
      make("div", { class: "card-top" }, make("h3", { tabindex: "-1" }, swatch(cluster.id), name), chosen),
      note(`${plural(cluster.size, app.talk.one)} · ${percent(cluster.share)}`));
    if (!cluster.size) {
      card.append(note("Nothing is here."));
      return card;
    }
    card.append(meter("mean confidence", cluster.confidence), this.gallery(cluster.typical, "typical", "a typical"));
    if (cluster.doubtful.length) card.append(make("h4", { text: "Least certain" }), this.gallery(cluster.doubtful, "doubtful", "a doubtful"));
    const rename = button("Rename", () => app.corrections.rename(cluster.id), { class: "quiet", "aria-label": `Rename ${cluster.name}` });
    const split = button("Split", () => app.corrections.split(cluster.id), { class: "quiet", "aria-label": `Split ${cluster.name}` });
    card.append(make("p", { class: "row deeds" }, rename, split));
    return card;
  }

  gallery(rows, kind, said) {
    const { app } = this.viewer;
    const items = rows.map((row, at) => make("li", {}, thumb(app, row, `Open ${said} ${app.talk.one}, number ${row}`, () => app.viewer.open(rows, at))));
    return make("ul", { class: `gallery ${kind}${app.pictures.absent ? " names" : ""}` }, items);
  }
}

/** The view of all clusters. */
export class ClustersView {
  constructor(app) {
    Object.assign(this, { app, tops: new Map() });
    this.bar = make("div", { class: "row chosen", role: "group", "aria-label": "Chosen clusters" });
    this.body = make("section", { "aria-labelledby": "title" }, make("h2", { id: "title", class: "title", text: "Clusters" }), this.bar);
    this.cards = new ClusterCards(app.talk.state, { app }, null);
    this.body.append(this.cards.body);
  }

  /** As it was left; the keyboard goes on from `cluster`, which one comes from. */
  enter(cluster) {
    this.refresh();
    const own = `cluster-${cluster}`;
    const seen = this.tops.has(own) && find(own) ? own : [...this.tops.keys()].find(find);
    if (seen) window.scrollBy({ top: find(seen).getBoundingClientRect().top - this.tops.get(seen), behavior: "instant" });
    if (!this.app.talk.byId.has(cluster)) return;
    if (!find(own)) this.cards.reveal(cluster);
    const link = find(own).querySelector("a");
    link.focus({ preventScroll: true });
    link.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  /** Remembers where the cards in sight stand: how far one has scrolled says little, for those out of sight have no size. */
  leave() {
    const tops = [...this.body.querySelectorAll(".card")].map((card) => [card.id, card.getBoundingClientRect().top]);
    this.tops = new Map(tops.filter(([, top]) => top > 0 && top < window.innerHeight));
  }

  refresh() {
    for (const id of this.app.chosen) if (!this.app.talk.byId.has(id)) this.app.chosen.delete(id);
    this.cards.data = this.app.talk.state;
    const held = document.activeElement.closest(".card")?.id;
    this.cards.draw();
    if (held) find(held)?.querySelector("a").focus({ preventScroll: true });
    this.drawBar();
  }

  drawBar() {
    const { app } = this;
    const ids = [...app.chosen];
    this.bar.classList.toggle("none", !ids.length); // which keeps its room, so that nothing moves at the first tick
    this.bar.replaceChildren(...(!ids.length ? [note("Tick clusters to merge them.")] : [
      make("span", { text: `${plural(ids.length, "cluster")} chosen` }),
      button(ids.length > 1 ? "Merge" : "Merge into…", () => app.corrections.merge(ids), { class: "main" }),
      button("None", () => this.chooseNone(), { "aria-label": "Choose none" })]));
  }

  chooseNone() {
    this.app.chosen.clear();
    this.refresh();
    find("main").focus({ preventScroll: true }); // the button has gone
  }

  get results() {
    return this.body.querySelector(".card a");
  }

  /** The cluster whose card has the focus. */
  get current() {
    const card = document.activeElement?.closest?.(".card");
    return card ? Number(card.dataset.id) : null;
  }

  key(event) {
    const { corrections, chosen } = this.app;
    const { current } = this;
    if (event.key === "m") corrections.merge(chosen.size ? [...chosen] : current === null ? [] : [current]);
    else if (event.key === "r" && current !== null) corrections.rename(current);
    else if (event.key === "s" && current !== null) corrections.split(current);
    else if (event.key === " " && current !== null && event.target.tagName !== "INPUT" && event.target.tagName !== "BUTTON") {
      this.app.choose(current, !chosen.has(current));
      this.refresh();
    } else if (event.key === "/") this.body.querySelector("input[type=search]")?.focus();
    else if (event.key.startsWith("Arrow") && event.target.tagName !== "INPUT") return this.step(event.key);
    else return false;
    return true;
  }

  step(key) {
    const links = [...this.body.querySelectorAll(".card h3 a")];
    const at = links.findIndex((link) => link.closest(".card").contains(document.activeElement));
    if (at < 0) return false;
    const top = (one) => one.closest(".card").getBoundingClientRect().top;
    const columns = Math.max(1, links.filter((one) => top(one) === top(links[0])).length);
    const next = at + { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
    links[next]?.focus();
    return Boolean(links[next]);
  }
}
