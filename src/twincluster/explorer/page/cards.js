// All clusters as cards, as in the report, to be opened, renamed, and chosen to be merged.
"use strict";

class ClusterCards extends Cards {
  get filterFrom() {
    return 2;
  }

  card(cluster) {
    const { app } = this.viewer;
    const kind = this.data.run.kind.slice(0, -1);
    const chosen = make("input", { type: "checkbox", "aria-label": `Choose ${cluster.name}`, onchange: () => app.choose(cluster.id, chosen.checked) });
    chosen.checked = app.chosen.has(cluster.id);
    const name = make("a", { href: `#cluster/${cluster.id}`, text: cluster.name });
    const card = make("article", { class: "card", id: `cluster-${cluster.id}`, "data-id": cluster.id },
      make("div", { class: "card-top" }, make("h3", { tabindex: "-1" }, swatch(cluster.id), name), chosen),
      note(`${plural(cluster.size, kind)} · ${percent(cluster.share)}`));
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
    const one = this.data.run.kind.slice(0, -1);
    const items = rows.map((row, at) => make("li", {}, thumb(app, row, `Open ${said} ${one}, number ${row}`, () => app.viewer.open(rows, at))));
    return make("ul", { class: `gallery ${kind}${app.pictures.absent ? " names" : ""}` }, items);
  }
}

/** The view of all clusters. */
class ClustersView {
  constructor(app) {
    this.app = app;
    this.bar = make("div", { class: "row chosen", role: "group", "aria-label": "Chosen clusters", hidden: true });
    this.body = make("section", { "aria-labelledby": "title" }, make("h2", { id: "title", class: "title", text: "Clusters" }), this.bar);
    this.refresh();
  }

  refresh() {
    const { state } = this.app.talk;
    for (const id of this.app.chosen) if (!this.app.talk.byId.has(id)) this.app.chosen.delete(id);
    if (this.cards) {
      this.cards.data = state;
      const held = document.activeElement?.closest?.(".card")?.id;
      this.cards.draw();
      if (held) find(held)?.querySelector("a").focus({ preventScroll: true });
    } else {
      this.cards = new ClusterCards(state, { app: this.app }, null);
      this.body.append(this.cards.body);
    }
    this.drawBar();
  }

  drawBar() {
    const { app } = this;
    const ids = [...app.chosen];
    this.bar.hidden = !ids.length;
    this.bar.replaceChildren(
      make("span", { text: `${plural(ids.length, "cluster")} chosen` }),
      button(ids.length > 1 ? "Merge" : "Merge into…", () => app.corrections.merge(ids), { class: "main" }),
      button("Choose none", () => { app.chosen.clear(); this.refresh(); }));
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
