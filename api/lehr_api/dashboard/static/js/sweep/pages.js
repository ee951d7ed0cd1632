/** A sweep's trials come in pages: as many as are shown, and the best of all. */

import { get } from "../api.js";

/** @typedef {import("../types.js").SweepDetail} SweepDetail */

/** Trials that one press on the button adds. */
export const PAGE = 200;

/**
 * The pages of a sweep as one: its trials in the sweep's order, with the best of those not read.
 *
 * @param {SweepDetail[]} pages
 * @returns {SweepDetail}
 */
export function joined(pages) {
  const newest = pages[pages.length - 1];
  const trials = new Map([...pages.flatMap((page) => page.trials), ...newest.best_trials].map((trial) => [trial.number, trial]));
  return { ...newest, trials: [...trials.values()].sort((a, b) => a.number - b.number) };
}

/**
 * @param {string} path of the sweep
 * @param {number} count read at most so many trials
 * @returns {Promise<SweepDetail>}
 */
export async function readSweep(path, count) {
  const pages = [];
  /** @type {string | null} */
  let cursor = null;
  do {
    const page = /** @type {SweepDetail} */ (await get(path, { limit: PAGE, cursor }));
    pages.push(page);
    cursor = page.next_cursor;
  } while (cursor !== null && pages.length * PAGE < count);
  return joined(pages);
}
