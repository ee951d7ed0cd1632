/** How late the live figures come: the events of a busy server come late. */

import { REPORTING } from "./status.js";

/** A lateness that is not shown, in seconds: until a node has reported and the server has stored and sent it. */
const USUAL_S = 5;

export class FiguresAge {
  /**
   * By live run: when its newest figures were recorded and how late they came. @type {Map<string, {recorded: number,
   * late: number}>}
   */
  runs = new Map();

  /**
   * @param {import("./types.js").RunView} run of an event
   * @param {number} now by the server's clock, in seconds since the epoch
   */
  take({ id, state, liveness, recorded_at: recorded }, now) {
    const before = this.runs.get(id);
    if (!REPORTING.includes(state) || liveness !== "ok" || recorded === null) this.runs.delete(id);
    // The first event may be of something else than new figures.
    else if (!before) this.runs.set(id, { recorded, late: 0 });
    else if (recorded > before.recorded) this.runs.set(id, { recorded, late: now - recorded });
  }

  /**
   * Return how late the newest figures of the live runs came, the median. A run without newer ones may evaluate or
   * save.
   *
   * @returns {number | null} seconds; null for what is usual
   */
  get late() {
    const all = [...this.runs.values()].map(({ late }) => late).sort((a, b) => a - b);
    const median = all[Math.floor((all.length - 1) / 2)] ?? 0;
    return median > USUAL_S ? median : null;
  }
}
