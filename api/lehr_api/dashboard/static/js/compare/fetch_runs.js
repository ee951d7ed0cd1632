/** Fetch the runs of a comparison. */

import { get } from "../api.js";

/** The most runs that are compared. */
export const MOST = 100;

/**
 * Fetch runs, in this order: all at once, and by themselves those that are not given by their ids.
 *
 * @param {string[]} refs
 * @returns {Promise<{found: import("../types.js").RunView[], missing: unknown}>} `missing`: the error of one that is
 *   not there
 */
export async function fetchRuns(refs) {
  const page = await get("/runs", { run: refs, limit: MOST });
  const there = new Map(page.items.map((/** @type {import("../types.js").RunView} */ run) => [run.id, run]));
  const answers = await Promise.allSettled(
    refs.map((one) => there.get(one) ?? get(`/runs/${encodeURIComponent(one)}`))
  );
  return {
    found: answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : [])),
    missing: answers.find((answer) => answer.status === "rejected")?.reason ?? null,
  };
}
