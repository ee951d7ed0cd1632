/** The curves beside the runs table: of the first runs that have a row. */

import { get } from "../api.js";
import { Board, SEVERAL_MS } from "../charts/board.js";
import { swatch } from "../charts/drawing.js";
import { inGroups } from "../charts/lines.js";
import { slots, stroke } from "../colour.js";
import { h, mount, throttled } from "../dom.js";
import { message } from "../notices.js";
import { read, write } from "../urlstate.js";

/** @typedef {import("../types.js").RunView} RunView */

/** The most runs that are drawn: more lines cannot be distinguished, and each is a request. */
const MOST_DRAWN = 20;
/** As means of groups, more runs make few lines. */
const MOST_GROUPED = 60;

/**
 * Return the runs whose curves are drawn, and what is said of the others.
 *
 * @param {RunView[]} all the runs for which a row stands, in the order of the table
 * @param {boolean} grouped whether they are drawn as means
 * @param {{total: number, folded: boolean}} table how many runs it counts, and whether some are in folded sweeps
 */
export function drawnOf(all, grouped, { total, folded }) {
  const most = grouped ? MOST_GROUPED : MOST_DRAWN;
  const trained = all.filter((run) => run.step !== null);
  const runs = trained.slice(0, most);
  const of = `${runs.length} of ${total} runs`;
  if (trained.length > most) return { runs, note: `The curves of the first ${of}. Filter or sort to choose others.` };
  return {
    runs,
    note: folded && runs.length < most
      ? `The curves of ${of}: of a folded sweep that of its best trial. Unfold a sweep to see the others.`
      : "",
  };
}

export class Beside {
  /**
   * @param {HTMLElement} place
   * @param {(run: string | null) => void} onLine called with the run whose line is under the pointer
   * @param {() => void} onChange called when a run is hidden or shown, and when its groups are here
   */
  constructor(place, onLine, onChange) {
    this.onChange = onChange;
    this.hidden = new Set((read("hide") ?? "").split(",").filter(Boolean));
    this.note = h("p.hint");
    /** @type {RunView[]} */
    this.runs = [];
    /** @type {Map<string, number>} */
    this.slots = new Map();
    this.drawn = "";
    /** What the names of groups were asked for. */
    this.asked = "";
    /** @type {Map<string, string> | null} by run, the name of its group; null until the server has answered */
    this.groups = null;
    /** @type {string | null} why there are no groups */
    this.problem = null;
    const charts = h("div");
    this.board = new Board(
      charts, [], { onLine, superseded: false, open: ["train", "val"], pins: "runs-pins", pauseMs: SEVERAL_MS },
    );
    mount(place, this.board.bar.element, this.note, charts);
    this.learn = throttled(() => this.#learn(), 5000);
  }

  /**
   * Show the curves of these runs.
   *
   * @param {RunView[]} all those for which a row stands, in the order of the table
   * @param {{total: number, folded: boolean}} table see `drawnOf`
   * @param {(run: RunView) => string} label
   * @param {string} by what they are grouped by, to be drawn as means: paths of the config, metrics, tags; "" for
   *   nothing
   */
  show(all, table, label, by) {
    const { runs, note } = drawnOf(all, by !== "", table);
    this.runs = runs;
    this.#askGroups(by);
    if (by && runs.length && !this.groups && !this.problem) return;
    const { groups: names } = this;
    const group = names && ((/** @type {RunView} */ run) => names.get(run.id) ?? run.name);
    // Each row has the mark of its line: a mean has that of the first of its runs that are shown.
    const groups = [...inGroups(this.runs, (run) => (group ? group(run) : run.id)).values()]
      .map((members) => ({ members, first: (members.find((run) => !this.hidden.has(run.id)) ?? members[0]).id }));
    const own = slots(groups.map(({ first }) => first));
    this.slots = new Map(groups.flatMap(({ members, first }) => members.map((run) => [run.id, own.get(first) ?? 0])));
    this.note.textContent = note;
    const key = (/** @type {RunView} */ run) => (group ? group(run) : null);
    const now = this.runs.map(
      (run) => `${run.id} ${label(run)} ${key(run)} ${this.hidden.has(run.id)} ${run.attempt} ${run.ended_at !== null}`
    ).join();
    if (now !== this.drawn) {
      this.drawn = now;
      this.board.bar.offer(this.runs);
      this.board.meanOfGroups = group !== null;
      this.board.setRuns(
        this.runs.map((run) => ({
          id: run.id, label: label(run), group: key(run), hidden: this.hidden.has(run.id),
          stroke: () => this.strokeOf(run.id), parent: run.forked_from, flopsPerToken: run.flops_per_token,
          attempt: run.attempt, ended: run.ended_at !== null,
        }))
      );
      if (runs.length) this.learn();
      else this.board.setMetrics([]);
    }
  }

  /** Ask the server for the groups of the runs, if others are shown. @param {string} by */
  async #askGroups(by) {
    const run = by ? this.runs.map(({ id }) => id) : [];
    const asked = `${by} ${run}`;
    if (asked === this.asked) return;
    this.asked = asked;
    this.groups = this.problem = null;
    if (!run.length) return;
    try {
      const { runs, groups } = await get("/values", { run, by });
      if (asked !== this.asked) return;
      this.groups = new Map(runs.map((/** @type {string} */ id, /** @type {number} */ i) => [id, groups[i]]));
    } catch (error) {
      if (asked !== this.asked) return;
      this.problem = message(error);
    }
    this.onChange();
  }

  /** New points have come. @param {string} id */
  tick(id) {
    if (this.slots.has(id)) this.board.announce(id);
  }

  /** @param {string} id */
  strokeOf(id) {
    return stroke(this.slots.get(id) ?? 0);
  }

  /** Return the mark of a run's line, with the button that hides it; null if it has no line. @param {RunView} run */
  eye(run) {
    if (!this.slots.has(run.id)) return null;
    const off = this.hidden.has(run.id);
    return h(off ? "button.eye.off" : "button.eye", { key: "eye", type: "button", "aria-pressed": String(!off),
      "aria-label": `${off ? "Show" : "Hide"} the curves of ${run.name}`, onclick: () => {
      if (off) this.hidden.delete(run.id);
      else this.hidden.add(run.id);
      write({ hide: [...this.hidden].join(",") });
      this.onChange();
    } }, swatch(this.strokeOf(run.id)));
  }

  /** Take the metrics of all runs that are drawn. */
  async #learn() {
    try {
      if (!this.runs.length) return;
      const asked = this.drawn;
      const { metric_names: names } = await get("/values", { run: this.runs.map((run) => run.id), names: true });
      if (asked === this.drawn) this.board.setMetrics(names);
    } catch (error) {
      this.board.failed(error);
    }
  }

  destroy() {
    this.board.destroy();
  }
}
