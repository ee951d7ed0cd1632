/** What the curves beside the runs table are grouped by. The comparison page also groups by metrics, as the server does. */

import { specValue } from "../format.js";
import { groupOf, keysOf } from "../groups.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("./configs.js").Configs} Configs
 */

const named = (/** @type {string} */ key) => key === "tag" || key === "project" || key.startsWith("tag:");

/** Return the names in a grouping that the configs of the runs must be fetched for. @param {string} by */
export const namesIn = (by) => keysOf(by).filter((key) => !named(key));

/**
 * Return the function that names a run's group.
 *
 * @param {string} by paths of the config or their ends, "tag", "tag:name", "project", with commas between them; "" for none
 * @param {Configs} configs
 * @returns {((run: RunView) => string) | null} null if curves are not grouped, or no run has one of the keys
 */
export function grouper(by, configs) {
  const keys = keysOf(by).map((key) => (named(key) ? key : (configs.pathsOf(key.toLowerCase())[0] ?? "")));
  if (!keys.length || keys.includes("")) return null;
  return (run) => groupOf(run, { by: keys.join(), value: (id, path) => configs.value(id, path), text: specValue });
}
