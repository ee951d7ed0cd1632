/** How old the live figures are: the events of a busy server come late. */

import { ACTIVE } from "./status.js";

/** An age that is not shown, in seconds: until a node has reported and the server has stored and sent it. */
const USUAL_S = 5;

export class FiguresAge {
  constructor() {
    /**
     * By live run: when its newest figures were recorded and came, how late they were, and the pause before them.
     *
     * @type {Map<string, {recorded: number, came: number, late: number, pause: number}>}
     */
    this.runs = new Map();
  }

  /**
   * Take an event of a run.
   *
   * @param {Pick<import("./types.js").RunView, "id" | "state" | "liveness" | "recorded_at">} run
   * @param {number} now by the server's clock, in seconds since the epoch
   */
  take({ id, state, liveness, recorded_at: recorded }, now) {
    if (!ACTIVE.has(state) || liveness !== "ok" || recorded === null) {
      this.runs.delete(id);
      return;
    }
    const before = this.runs.get(id);
    if (before && recorded <= before.recorded) return;
    // The first event may be of something else than new figures.
    this.runs.set(id, { recorded, came: now, late: before ? now - recorded : 0, pause: before ? now - before.came : Infinity });
  }

  /**
   * Return the median age over the live runs: how late their newest figures came, or if newer ones are overdue, how long
   * ago they were recorded.
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
