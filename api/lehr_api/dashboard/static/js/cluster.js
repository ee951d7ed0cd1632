/** What GPUs do now, and the queue: neighbours that wait for the same thing are one row. */

import * as f from "./format.js";
/** @import { GpuView, QueueEntry } from "./types.js" */

export const ABOUT = "Utilization: share of the driver's last sample period in which a kernel ran. Memory: of all processes. The node's agent read both with NVML a few seconds ago; — means unknown. GB are powers of 1,000, as everywhere in Lehr: nvidia-smi's 81,559 MiB are 85.5 GB.";

/** @param {GpuView} gpu */
export function memoryUsed(gpu) {
  const used = f.bytes(gpu.memory_used_bytes);
  return gpu.memory_used_bytes === null || gpu.memory_bytes === null ? used : `${used} of ${f.bytes(gpu.memory_bytes)}`;
}

/** @param {GpuView} gpu */
export const temperature = (gpu) => (
  gpu.temperature_celsius === null ? f.NONE : `${f.integer(Math.round(gpu.temperature_celsius))} °C`
);

/**
 * Describe when a run is expected to start, and what that rests on.
 *
 * @param {Pick<QueueEntry, "expected_start" | "expected_because">} entry
 * @param {number} now in seconds since the epoch
 * @returns {{text: string, basis: string} | null} null where something else than GPUs is missing
 */
export function expectation({ expected_start: start, expected_because: because }, now) {
  if (start === null) return because ? { text: f.NONE, basis: because } : null;
  return { text: `in about ${f.duration(Math.max(60, Math.round((start - now) / 60) * 60))}`, basis: because };
}

/** @param {string} name */
const stem = (name) => name.replace(/-\d+$/, "");

/** @param {QueueEntry[]} queue @returns {QueueEntry[][]} in its order */
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
