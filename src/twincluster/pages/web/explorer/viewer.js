// One image at full size, what is known of it, and the images that are most like it.
import { make, count, decimal, baseName, note, button, copyButton } from "../parts/dom.js";
import { show } from "../parts/dialogs.js";
import { thumb } from "./pictures.js";

export class ImageViewer {
  constructor(app) {
    this.app = app;
  }

  /** The image at a place of a list of rows, through which the arrow keys go. */
  open(rows, at) {
    if (!rows.length) return null;
    Object.assign(this, { rows, at });
    if (this.dialog?.isConnected) return this.draw();
    this.parts = make("div", {});
    this.dialog = make("dialog", { class: "viewer", "aria-labelledby": "viewer-path" }, this.parts);
    this.dialog.addEventListener("keydown", (event) => this.key(event));
    this.draw();
    return show(this.dialog);
  }

  key(event) {
    const row = this.rows[this.at];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight") this.go(1);
    else if (event.key === "ArrowLeft") this.go(-1);
    else if (event.key === "j" && this.one) this.act(() => (this.one.cluster === -2 ? this.app.corrections.unjunk([row]) : this.app.corrections.junk([row])));
    else if (event.key === "m" && this.one) this.act(() => this.app.corrections.move([row], this.one.cluster));
    else if (event.key === "u") this.act(() => this.app.corrections.undo());
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async act(deed) {
    await deed();
    if (this.dialog.isConnected) this.draw();
  }

  go(step) {
    this.at = (this.at + step + this.rows.length) % this.rows.length;
    this.draw();
  }

  async draw() {
    const { app } = this;
    const row = this.rows[this.at];
    let one = { path: String(row), cluster: -1, status: "" };
    try {
      [one] = await app.talk.ask(`/api/details?rows=${row}`);
    } catch (error) {
      one.status = error.message;
    }
    if (row !== this.rows[this.at]) return;
    this.one = one;
    const held = this.dialog.contains(document.activeElement) ? document.activeElement.textContent : null;
    const { pixelated } = app.talk.state.pictures;
    const picture = app.pictures.absent || one.cluster === -1 ? note(one.status === "ok" ? "No picture" : one.status || "No picture")
      : make("a", { href: app.pictures.address(row, "image"), target: "_blank", rel: "noopener", title: "Open in a tab of its own" },
        make("img", { class: "whole", src: app.pictures.address(row, "image"), alt: one.path, "data-pixelated": pixelated }));
    const said = [app.talk.nameOf(one.cluster), one.confidence === null ? null : `confidence ${decimal(one.confidence)}`, `${count(this.at + 1)} of ${count(this.rows.length)}`];
    this.near = make("div", { class: "near" }, note("Looking for the nearest images …"));
    this.parts.replaceChildren(make("div", { class: "viewer-picture" }, picture), make("p", { class: "viewer-path", id: "viewer-path", text: one.path }),
      note(said.filter(Boolean).join(" · ")), this.buttons(row, one), make("h3", { text: "Most like it" }), this.near);
    const again = [...this.parts.querySelectorAll("button")].find((each) => held && each.textContent === held);
    (again ?? this.parts.querySelector("[data-first]"))?.focus();
    this.neighbours(row);
  }

  buttons(row, one) {
    const { corrections } = this.app;
    const step = (text, name, by) => button(text, () => this.go(by), { "aria-label": name, disabled: this.rows.length < 2 });
    const junk = one.cluster === -2 ? button("Not junk", () => this.act(() => corrections.unjunk([row]))) : button("Junk", () => this.act(() => corrections.junk([row])));
    return make("div", { class: "row" }, step("←", "Previous image", -1), step("→", "Next image", 1),
      ...(one.cluster === -1 ? [] : [button("Move…", () => this.act(() => corrections.move([row], one.cluster))), junk]),
      copyButton("Copy path", () => one.path), button("Close", () => this.dialog.close(), { "data-first": true }));
  }

  async neighbours(row) {
    const { near, app } = this;
    try {
      const { neighbours, absent } = await app.talk.ask(`/api/neighbours/${row}`);
      near.replaceChildren(absent ? note(`None to show: ${absent}.`) : neighbourList(app, neighbours, (at) => this.open(neighbours.map((one) => one.row), at)));
    } catch (error) {
      near.replaceChildren(note(error.message));
    }
  }
}

export function neighbourList(app, neighbours, open) {
  const items = neighbours.map(({ row, path, cluster, cosine }, at) => {
    const said = `${path ?? `Image ${row}`}${cluster === undefined ? "" : `, ${app.talk.nameOf(cluster)}`}, cosine ${decimal(cosine)}`;
    return make("li", {}, thumb(app, row, said, () => open(at), path && baseName(path)));
  });
  return make("ul", { class: `gallery many${app.pictures.absent ? " names" : ""}`, "aria-label": "Most like it" }, items);
}
