// The view of all clusters: cards, as in the report, to open, rename and merge.
import { Cards, clusterCard, stepCards } from "../parts/cards.js";
import { button, find, make, note, percent, plural } from "../parts/dom.js";
import { gallery } from "../parts/gallery.js";

/** @import { Cluster } from "../types.js" */
/** @import { Explorer } from "./explorer.js" */

export class ClustersView {
  /** @param {Explorer} app */
  constructor(app) {
    this.app = app;
    /** @type {Map<string, number>} where the cards in sight stood when the view was left */
    this.tops = new Map();
    this.bar = make("div", { class: "row chosen", role: "group", "aria-label": "Chosen clusters" });
    this.body = make("section", { "aria-labelledby": "title" }, make("h2", { id: "title", class: "title", text: "Clusters" }), this.bar);
    this.cards = new Cards(app.talk.state.clusters, { card: (cluster) => this.card(cluster), title: ({ name }) => name, filterFrom: 2 });
    this.body.append(this.cards.body);
  }

  /** @param {Cluster} cluster */
  card(cluster) {
    const { app } = this;
    const { id, name, size, share } = cluster;
    const chosen = make("input", { type: "checkbox", "aria-label": `Choose ${name}` });
    chosen.addEventListener("change", () => app.choose(id, chosen.checked));
    chosen.checked = app.chosen.has(id);
    const rename = button("Rename", () => app.corrections.rename(id), { class: "quiet", "aria-label": `Rename ${name}` });
    const split = button("Split", () => app.corrections.split(id), { class: "quiet", "aria-label": `Split ${name}` });
    return clusterCard(cluster, {
      title: make("a", { href: `#cluster/${id}`, text: name }),
      corner: chosen,
      facts: [plural(size, app.talk.one), percent(share)],
      empty: "Nothing is here.",
      galleries: [
        [null, this.gallery(cluster.typical, "typical", "a typical")],
        ["Least certain", cluster.doubtful.length ? this.gallery(cluster.doubtful, "doubtful", "a doubtful") : null],
      ],
      actions: make("p", { class: "row deeds" }, rename, split),
    });
  }

  /** @type {(rows: number[], kind: string, which: string) => HTMLElement} */
  gallery(rows, kind, which) {
    const { pictures, talk, viewer } = this.app;
    return gallery(rows.map((row, at) =>
      pictures.thumb(row, `Open ${which} ${talk.one}, number ${row}`, () => viewer.open(rows, at))), kind);
  }

  /**
   * Shows the view as it was; the focus returns to `cluster`, whose page was open.
   * @param {number} [cluster]
   */
  enter(cluster) {
    this.refresh();
    const own = `cluster-${cluster}`;
    const seen = [own, ...this.tops.keys()].find((id) => this.tops.has(id) && document.getElementById(id));
    const top = seen && this.tops.get(seen);
    if (top) window.scrollBy({ top: find(seen).getBoundingClientRect().top - top, behavior: "instant" });
    if (cluster === undefined || !this.app.talk.byId.has(cluster)) return;
    if (!document.getElementById(own)) this.cards.reveal(cluster);
    const link = find(own).querySelector("a");
    link?.focus({ preventScroll: true });
    link?.scrollIntoView({ block: "nearest", behavior: "instant" });
  }

  /** Remembers where the visible cards are: hidden cards have no size, so the scroll position is not enough. */
  leave() {
    this.tops.clear();
    for (const card of this.body.querySelectorAll(".card")) {
      const { top } = card.getBoundingClientRect();
      if (top > 0 && top < window.innerHeight) this.tops.set(card.id, top);
    }
  }

  refresh() {
    for (const id of this.app.chosen) if (!this.app.talk.byId.has(id)) this.app.chosen.delete(id);
    this.cards.clusters = this.app.talk.state.clusters;
    const focused = document.activeElement?.closest(".card")?.id;
    this.cards.draw();
    if (focused) document.getElementById(focused)?.querySelector("a")?.focus({ preventScroll: true });
    this.drawBar();
  }

  drawBar() {
    const { app } = this;
    const ids = [...app.chosen];
    this.bar.classList.toggle("none", !ids.length); // it keeps its space, so that nothing moves when the first card is ticked
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
    return /** @type {HTMLElement | null} */ (this.body.querySelector(".card a"));
  }

  /** The cluster whose card has the focus. */
  get current() {
    const card = /** @type {HTMLElement | null} */ (document.activeElement?.closest(".card"));
    return card ? Number(card.dataset.id) : null;
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { corrections, chosen } = this.app;
    const { current } = this;
    const { tagName } = /** @type {Element} */ (event.target);
    if (event.key === "m") corrections.merge(chosen.size ? [...chosen] : current === null ? [] : [current]);
    else if (event.key === "r" && current !== null) corrections.rename(current);
    else if (event.key === "s" && current !== null) corrections.split(current);
    else if (event.key === " " && current !== null && tagName !== "INPUT" && tagName !== "BUTTON") {
      this.app.choose(current, !chosen.has(current));
      this.refresh();
    } else if (event.key === "/") this.cards.field.focus();
    else if (event.key.startsWith("Arrow") && tagName !== "INPUT") return stepCards(this.body, event.key);
    else return false;
    return true;
  }
}
