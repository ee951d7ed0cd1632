/** Which figures of a node are shown over time, and how their values are written. */

import * as f from "./format.js";

/**
 * @typedef {object} Course
 * @property {string} label
 * @property {(number | null)[]} values
 * @property {(value: number) => string} text
 * @property {number} [top] end of the axis; by default the highest value
 */

const rate = (/** @type {number} */ value) => `${f.bytes(value)}/s`;

/**
 * @param {(number | null)[]} values
 * @returns {number | undefined} the last known value
 */
function newest(values) {
  return values.findLast((value) => value !== null) ?? undefined;
}

/**
 * Return the figures that were measured, GPUs first.
 *
 * @param {import("./types.js").SystemHistory} history
 * @returns {Course[]}
 */
export function courses(history) {
  const host = history.host;
  /** @type {Course[]} */
  const all = [
    ...history.gpus.flatMap((gpu) => [
      { label: `GPU ${gpu.index}`, values: gpu.utilization, text: f.percent, top: 1 },
      { label: `GPU ${gpu.index} memory`, values: gpu.memory_used_bytes, text: f.bytes },
      { label: `GPU ${gpu.index} power`, values: gpu.power_watts, text: (/** @type {number} */ value) => `${Math.round(value)} W` },
      { label: `GPU ${gpu.index} temperature`, values: gpu.temperature_celsius, text: (/** @type {number} */ value) => `${Math.round(value)} °C` },
    ]),
    { label: "CPU", values: host.cpu, text: f.percent, top: 1 },
    { label: "memory", values: host.ram_used_bytes, text: f.bytes, top: newest(host.ram_bytes) },
    { label: "disk", values: host.disk_used_bytes, text: f.bytes, top: newest(host.disk_bytes) },
    { label: "disk read", values: host.disk_read_bytes_per_s, text: rate },
    { label: "disk written", values: host.disk_write_bytes_per_s, text: rate },
    { label: "network in", values: host.network_in_bytes_per_s, text: rate },
    { label: "network out", values: host.network_out_bytes_per_s, text: rate },
  ];
  return all.filter((course) => course.values.some((value) => value !== null));
}
