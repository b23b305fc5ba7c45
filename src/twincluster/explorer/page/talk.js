// Talks with the server: what the run looks like now, and edits, each with the number of the newest edit that was seen.
"use strict";

const POLL = 1500; // milliseconds between two looks at whether somebody else has edited

class Refusal extends Error {}

class Talk {
  constructor(changed) {
    Object.assign(this, { changed, state: null });
  }

  async ask(path, options = {}) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Refusal("The server does not answer: is twincluster serve still running?");
    }
    const found = await answer.json();
    if (answer.ok) return found;
    if (answer.status === 409) {
      this.take(found.state);
      const what = found.state.undo ? ` (now newest: ${found.state.undo})` : "";
      throw new Refusal(`Somebody else made a change meanwhile${what}. Yours was not made: look again, and repeat it.`);
    }
    throw new Refusal(found.error || `The server says ${answer.status}.`);
  }

  async load() {
    this.take(await this.ask("/api/state"));
  }

  /** One edit; resolves when it is kept. */
  async edit(kind, fields = {}) {
    const body = JSON.stringify({ kind, expected: this.state.number, ...fields });
    this.take(await this.ask("/api/edit", { method: "POST", headers: { "content-type": "application/json" }, body }));
  }

  take(state) {
    this.state = state;
    this.byId = new Map(state.clusters.map((cluster) => [cluster.id, cluster]));
    this.changed(state);
  }

  /** What a cluster is called. */
  nameOf(id) {
    if (id === -2) return "Junk";
    return id === -1 ? "Unreadable" : this.byId.get(id)?.name ?? `Cluster ${id}`;
  }

  /** Looks every other moment, while the page can be seen, whether there is something new; `warn` is told what stays. */
  watch(tell, warn) {
    setInterval(async () => {
      if (document.hidden || !this.state) return;
      try {
        const { number, ready, version, trouble } = await this.ask("/api/number");
        warn(trouble && `${trouble[0].toUpperCase()}${trouble.slice(1)}. What you see is how it was before.`);
        if (number === null) return;
        const edited = number !== this.state.number;
        const updated = version !== this.state.pictures.version;
        const waits = ready && !this.state.features.ready && !this.told;
        if (!edited && !updated && !waits) return;
        this.told = ready;
        const before = this.state.run.inputs;
        await this.load();
        const more = this.state.run.inputs - before;
        if (updated) tell(more > 0 ? `${plural(more, "new image")}, by twincluster update.` : "Some images have changed, by twincluster update.");
        else if (edited) tell(`Changed in another window${this.state.undo ? `: ${this.state.undo}` : ""}.`);
      } catch (error) {
        warn(error.message);
      }
    }, POLL);
  }
}
