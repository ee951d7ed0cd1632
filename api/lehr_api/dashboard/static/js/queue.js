/** Waiting runs in the order of the queue: neighbours that wait for the same thing are one row. */

import { duration, NONE } from "./format.js";

/** @typedef {import("./types.js").QueueEntry} QueueEntry */

/**
 * Describe when a run is expected to start, and what that rests on.
 *
 * @param {Pick<QueueEntry, "expected_start" | "expected_because">} entry
 * @param {number} now in seconds since the epoch
 * @returns {{text: string, basis: string} | null} null where something else than GPUs is missing
 */
export function expectation({ expected_start: start, expected_because: because }, now) {
  if (start === null) return because ? { text: NONE, basis: because } : null;
  return { text: `in about ${duration(Math.max(60, Math.round((start - now) / 60) * 60))}`, basis: because };
}

/** @param {string} name */
const stem = (name) => name.replace(/-\d+$/, "");

/**
 * @param {QueueEntry[]} queue
 * @returns {QueueEntry[][]} in its order
 */
export function alike(queue) {
  /** @type {QueueEntry[][]} */
  const groups = [];
  const sign = (/** @type {QueueEntry} */ one) => [
    stem(one.name), one.gpus, one.nodes, one.gpu_type, one.priority, one.reason,
  ].join("\n");
  for (const entry of queue) {
    const before = groups[groups.length - 1];
    if (before && sign(before[0]) === sign(entry)) before.push(entry);
    else groups.push([entry]);
  }
  return groups;
}
