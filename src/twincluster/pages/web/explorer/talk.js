// Talks with the server: what the run looks like now, and edits, each with the number of the newest edit that was seen.
import { plural } from "../parts/dom.js";
import { Refusal } from "../parts/dialogs.js";

const POLL = 1500; // milliseconds between two looks at whether somebody else has edited

export class Talk {
  constructor(changed) {
    Object.assign(this, { changed, state: null, edits: 0, underway: 0, late: 0, before: Promise.resolve() });
  }

  async ask(path, options = {}) {
    let answer, found;
    try {
      answer = await fetch(path, options);
      found = await answer.json();
    } catch {
      throw new Refusal(answer && !answer.ok ? `The server has failed (${answer.status}): its terminal says why.`
        : "The server does not answer: is twincluster serve still running?");
    }
    if (answer.ok) return found;
    if (answer.status === 409) {
      this.late += 1;
      this.take(found.state);
      const what = found.state.undo ? ` (now newest: ${found.state.undo})` : "";
      throw new Refusal(`Somebody else made a change meanwhile${what}. Yours was not made: look again, and repeat it.`);
    }
    throw new Refusal(found.error);
  }

  async load() {
    this.take(await this.ask("/api/state"));
  }

  /** One edit; resolves when it is kept. */
  edit(kind, fields = {}) {
    return this.inTurn(() => this.send(kind, fields));
  }

  /**
   * What is asked for while an edit is under way is done after it, for it would come too late beside it; where that one
   * came too late itself, it is not done either: an undo that was meant for it would take back somebody else's edit.
   */
  inTurn(deed) {
    const { late } = this;
    const done = this.before.then(() => {
      if (late !== this.late) throw new Refusal("Somebody else made a change meanwhile. Yours were not made: look again, and repeat them.");
      return deed();
    });
    this.before = done.catch(() => {});
    return done;
  }

  async send(kind, fields) {
    const body = JSON.stringify({ kind, expected: this.state.number, ...fields });
    this.edits += 1;
    this.underway += 1;
    try {
      this.take(await this.ask("/api/edit", { method: "POST", headers: { "content-type": "application/json" }, body }));
    } finally {
      this.underway -= 1;
    }
  }

  take(state) {
    this.state = state;
    this.byId = new Map(state.clusters.map((cluster) => [cluster.id, cluster]));
    this.changed(state);
  }

  /** What the run is about, in the singular. */
  get one() {
    return this.state.run.kind.slice(0, -1);
  }

  /** What a cluster is called. */
  nameOf(id) {
    if (id === -2) return "Junk";
    return id === -1 ? "Unreadable" : this.byId.get(id)?.name ?? `Cluster ${id}`;
  }

  /** Looks every other moment, while the page can be seen, whether there is something new; `warn` is told what stays. */
  watch(tell, warn) {
    setInterval(async () => {
      if (document.hidden || this.underway) return;
      const { edits } = this;
      try {
        const { number, ready, version, trouble } = await this.ask("/api/number");
        warn(trouble && `${trouble[0].toUpperCase()}${trouble.slice(1)}. What you see is how it was before.`);
        if (number === null || edits !== this.edits) return; // what has changed may be what this window did meanwhile
        const edited = number !== this.state.number;
        const updated = version !== this.state.pictures.version;
        const waits = ready && !this.state.features.ready && !this.told;
        if (!edited && !updated && !waits) return;
        this.told = ready;
        const before = this.state.run.inputs;
        const state = await this.ask("/api/state");
        if (edits !== this.edits) return;
        this.take(state);
        const more = this.state.run.inputs - before;
        if (updated) tell(more > 0 ? `${plural(more, "new image")}, by twincluster update.` : "Some images have changed, by twincluster update.");
        else if (edited) tell(`Changed in another window${this.state.undo ? `: ${this.state.undo}` : ""}.`);
      } catch (error) {
        warn(error.message);
      }
    }, POLL);
  }
}
