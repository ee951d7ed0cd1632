/** How old the live figures are: the events of a busy server come late. */

import { ACTIVE } from "./status.js";

/** An age that is not shown, in seconds: until a node has reported and the server has stored and sent it. */
const USUAL_S = 5;

export class FiguresAge {
  /** By live run: when its newest figures were recorded and came, how late, and the pause before. @type {Map<string, {recorded: number, came: number, late: number, pause: number}>} */
  runs = new Map();

  /** @param {import("./types.js").RunView} run of an event @param {number} now by the server's clock, in seconds since the epoch */
  take({ id, state, liveness, recorded_at: recorded }, now) {
    const before = this.runs.get(id);
    if (!ACTIVE.has(state) || liveness !== "ok" || recorded === null) this.runs.delete(id);
    // The first event may be of something else than new figures.
    else if (!before) this.runs.set(id, { recorded, came: now, late: 0, pause: Infinity });
    else if (recorded > before.recorded) this.runs.set(id, { recorded, came: now, late: now - recorded, pause: now - before.came });
  }

  /**
   * Return the median age over the live runs: how late their newest figures came; since they were recorded, if newer are overdue.
   *
   * @param {number} now
   * @returns {number | null} seconds; null for what is usual
   */
  of(now) {
    const ages = [...this.runs.values()].map(({ recorded, came, late, pause }) => (now - came > USUAL_S + 3 * pause ? now - recorded : late));
    const median = ages.sort((a, b) => a - b)[Math.floor((ages.length - 1) / 2)] ?? 0;
    return median > USUAL_S ? median : null;
  }
}
