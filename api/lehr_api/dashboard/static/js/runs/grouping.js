/** What the curves beside the runs table are grouped by. */

import { specValue } from "../format.js";
import { groupOf, keysOf } from "../groups.js";

/** @typedef {import("../types.js").RunView} RunView */

/**
 * Return the function that names a run's group.
 *
 * @param {string} by paths of the config or their ends, "tag", "tag:name", "project", with commas between them; "" for none
 * @param {import("./configs.js").Configs} configs
 * @returns {((run: RunView) => string) | null} null if curves are not grouped, or no config has one of the paths
 */
export function grouper(by, configs) {
  const named = (/** @type {string} */ key) => key === "tag" || key === "project" || key.startsWith("tag:");
  const keys = keysOf(by).map((key) => (named(key) ? key : configs.pathOf(key.toLowerCase())));
  if (!keys.length || keys.includes(null)) return null;
  const grouping = { by: keys.join(), value: (/** @type {string} */ id, /** @type {string} */ path) => configs.value(id, path), text: specValue };
  return (run) => groupOf(run, grouping);
}
