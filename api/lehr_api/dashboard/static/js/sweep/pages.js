/** A sweep's trials come in pages: as many as are shown, and the best of all. */

import { get } from "../api.js";
/** @import { SweepDetail } from "../types.js" */

/** Return what the page has in place of curves. @param {{state: string}} sweep without a trial that has begun */
export const withoutCurves = ({ state }) => (
  state === "finished" ? "No trial reached a step: there are no curves." : "Curves appear with the first step."
);

/** Trials that one press on the button adds. */
export const PAGE = 200;

/** Return trials by their numbers, of each its last view. @param {SweepDetail["trials"]} trials */
const inOrder = (trials) => [...new Map(trials.map((trial) => [trial.number, trial])).values()]
  .sort((a, b) => a.number - b.number);

/**
 * The pages of a sweep as one: its trials in the sweep's order, with the best of those not read.
 *
 * @param {SweepDetail[]} pages
 * @returns {SweepDetail}
 */
export function joined(pages) {
  const newest = pages[pages.length - 1];
  return { ...newest, trials: inOrder([...pages.flatMap((page) => page.trials), ...newest.best_trials]) };
}

/**
 * @param {string} path of the sweep
 * @param {number} count how many trials are read at most
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

/**
 * The sweep after some of its runs have changed: their trials are replaced, and all are ranked again.
 *
 * @param {SweepDetail} before
 * @param {SweepDetail} news the answer to a request that named those runs
 * @returns {SweepDetail | null} null if trials were added or deleted, so that pages must be read again
 */
export function withNews(before, news) {
  if (news.standings.length !== before.trials_total) return null;
  const standings = new Map(news.standings.map((one) => [one.number, one]));
  const trials = inOrder([...before.trials, ...news.trials, ...news.best_trials])
    .map((trial) => ({ ...trial, ...standings.get(trial.number) }));
  return { ...news, trials, trials_total: before.trials_total, next_cursor: before.next_cursor };
}

/**
 * Return what decides a sweep's figure, as one text: it changes with the figure, and not at each step.
 *
 * @param {SweepDetail} sweep
 */
export function standing({ counts, standings, trials, repetitions, stopped }) {
  const all = [...(standings.length ? standings : trials), ...repetitions];
  return JSON.stringify(
    [counts, stopped, all.map(({ compared_value: compared, value, rank }) => [compared, value, rank])]
  );
}

/** The most runs that one request names; after more changes, all is read. */
const MOST_NAMED = 100;

/** The runs that have changed since they were last read. */
export class Changes {
  constructor() {
    /** @type {Set<string>} */
    this.runs = new Set();
    /** Whether everything must be read. */
    this.all = true;
  }

  /** @param {string} run */
  add(run) {
    this.runs.add(run);
    if (this.runs.size > MOST_NAMED) this.all = true;
  }

  /**
   * Return the runs to read, and forget them: later changes count for the next request.
   *
   * @returns {string[] | null} null for all
   */
  take() {
    const found = this.all ? null : [...this.runs];
    this.runs.clear();
    this.all = false;
    return found;
  }
}
