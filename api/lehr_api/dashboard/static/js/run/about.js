/** What the page of a run shows around it: its place in the queue, and whether it can be forked. */

import { expectation } from "../queue.js";
import { ENDED } from "../status.js";

/** How often a page looks again for what no event announces. */
export const LOOK_MS = 15_000;

/** @param {Pick<import("../types.js").CheckpointView, "removed_at">[]} checkpoints */
export const canForkFrom = (checkpoints) => checkpoints.some((one) => one.removed_at === null);

/**
 * Return whether something of the run may change without an event: why it waits, or its first checkpoint.
 *
 * @param {import("../types.js").RunView} run
 * @param {boolean} canFork
 */
export const looksAgain = (run, canFork) =>
  run.state === "queued" || (!canFork && run.step !== null && !ENDED.has(run.state));

/**
 * @param {import("../types.js").QueueEntry[]} queue
 * @param {string} id of the run
 * @param {number} now in seconds since the epoch
 * @returns {{position: number | null, expected: string | null}}
 */
export function aboutQueue(queue, id, now) {
  const entry = queue.find((one) => one.run_id === id);
  const start = entry && expectation(entry, now);
  return {
    position: entry?.position ?? null,
    expected: start && entry.expected_start !== null ? `expected to start ${start.text}, when ${start.basis}` : null,
  };
}
