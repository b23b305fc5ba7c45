// The connection to the server: the current state, and edits, each with the number of the newest edit that the page knows.
import { capitalised, plural } from "../parts/dom.js";
import { messageOf, Refusal } from "../parts/dialogs.js";

/** @import { Cluster, ExplorerState } from "../types.js" */

const POLL = 1500; // milliseconds between two checks for edits by others

export class Talk {
  /** @param {(state: ExplorerState) => void} changed */
  constructor(changed) {
    this.changed = changed;
    this.state = /** @type {ExplorerState} */ (/** @type {unknown} */ (null)); // set by load()
    /** @type {Map<number, Cluster>} */
    this.byId = new Map();
    this.edits = 0; // sent by this page
    this.underway = 0;
    this.foreign = 0; // changes by others that this page has shown
    this.late = 0; // edits that the server rejected because of an edit by somebody else
    this.announced = false; // whether this page has shown the features
    /** @type {Promise<unknown>} */
    this.before = Promise.resolve();
  }

  /**
   * The answer of the server. Throws a Refusal with the reason if there is none.
   * @param {string} path
   * @param {RequestInit} [options]
   * @returns {Promise<any>}
   */
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
      this.foreign += 1;
      this.take(found.state);
      const what = found.state.undo ? ` (now newest: ${found.state.undo})` : "";
      throw new Refusal(`Somebody else made a change meanwhile${what}. Yours was not made: look again, and repeat it.`);
    }
    throw new Refusal(found.error);
  }

  async load() {
    this.take(await this.ask("/api/state"));
  }

  /**
   * One edit; resolves when it is saved.
   * @param {string} kind
   * @param {Record<string, unknown>} [fields]
   */
  edit(kind, fields = {}) {
    return this.inTurn(() => this.send(kind, fields));
  }

  /**
   * Runs `deed` after the pending edit, since it would be rejected beside it. If that edit itself was rejected,
   * `deed` is not run: an undo that was meant for that edit would undo somebody else's.
   * @template T
   * @param {() => T | Promise<T>} deed
   * @returns {Promise<T>}
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

  /** @type {(kind: string, fields: Record<string, unknown>) => Promise<void>} */
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

  /** @param {ExplorerState} state */
  take(state) {
    this.state = state;
    this.byId = new Map(state.clusters.map((cluster) => [cluster.id, cluster]));
    this.changed(state);
  }

  /** The noun for the run's inputs, in the singular. */
  get one() {
    return this.state.run.kind.slice(0, -1);
  }

  /**
   * What a cluster is called.
   * @param {number} id
   */
  nameOf(id) {
    if (id === -2) return "Junk";
    return id === -1 ? "Unreadable" : this.byId.get(id)?.name ?? `Cluster ${id}`;
  }

  /**
   * Polls for changes while the page is visible. `tell` gets changes, `warn` gets errors.
   * @param {(text: string) => void} tell
   * @param {(text: string) => void} warn
   */
  watch(tell, warn) {
    setInterval(async () => {
      if (document.hidden || this.underway) return;
      const { edits } = this;
      try {
        const { number, ready, version, trouble } = await this.ask("/api/number");
        warn(trouble && `${capitalised(trouble)}. What you see is how it was before.`);
        if (number === null || edits !== this.edits) return; // the change may be an edit of this window
        const edited = number !== this.state.number;
        const updated = version !== this.state.pictures.version;
        const waits = ready && !this.state.features.ready && !this.announced;
        if (!edited && !updated && !waits) return;
        this.announced = ready;
        const before = this.state.run.inputs;
        const state = await this.ask("/api/state");
        if (edits !== this.edits) return;
        if (edited || updated) this.foreign += 1;
        this.take(state);
        const more = this.state.run.inputs - before;
        if (updated) tell(more > 0 ? `${plural(more, "new image")}, by twincluster update.` : "Some images have changed, by twincluster update.");
        else if (edited) tell(`Changed in another window${this.state.undo ? `: ${this.state.undo}` : ""}.`);
      } catch (error) {
        warn(messageOf(error));
      }
    }, POLL);
  }
}
