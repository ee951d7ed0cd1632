/** What the curves beside the runs table are grouped by. */

import { specValue } from "../format.js";
import { groupOf } from "../groups.js";

/** @typedef {import("../types.js").RunView} RunView */

/**
 * Return the function that names a run's group.
 *
 * @param {string} by a path of the config or its end, "tag", "tag:name", "project"; "" for none
 * @param {import("./configs.js").Configs} configs
 * @returns {((run: RunView) => string) | null} null if curves are not grouped, or no config has the path
 */
export function grouper(by, configs) {
  const named = by === "tag" || by === "project" || by.startsWith("tag:");
  const path = named ? by : by && configs.pathOf(by.toLowerCase());
  if (!path) return null;
  const grouping = { by: path, value: (/** @type {string} */ id) => configs.value(id, path), text: (/** @type {any} */ v) => specValue(v, path) };
  return (run) => groupOf(run, grouping);
}
