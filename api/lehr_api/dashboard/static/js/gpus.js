/** Describe what a GPU does now. The pages of the cluster and of a run share it. */

import * as f from "./format.js";

/** @typedef {import("./types.js").GpuView} GpuView */

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
