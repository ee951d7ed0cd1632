/** Waiting runs in the order of the queue: neighbours that wait for the same thing are one row. */

/** @typedef {import("./types.js").QueueEntry} QueueEntry */

/** @param {string} name */
const stem = (name) => name.replace(/-\d+$/, "");

/**
 * @param {QueueEntry[]} queue
 * @returns {QueueEntry[][]} in its order
 */
export function alike(queue) {
  /** @type {QueueEntry[][]} */
  const groups = [];
  const sign = (/** @type {QueueEntry} */ one) => [stem(one.name), one.gpus, one.nodes, one.gpu_type, one.priority, one.reason].join("\n");
  for (const entry of queue) {
    const before = groups[groups.length - 1];
    if (before && sign(before[0]) === sign(entry)) before.push(entry);
    else groups.push([entry]);
  }
  return groups;
}
