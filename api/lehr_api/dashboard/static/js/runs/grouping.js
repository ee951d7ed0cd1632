/** What the curves beside the runs table are grouped by. */

import { edgesOf, readKey } from "../bins.js";
import { specValue } from "../format.js";
import { groupOf, keysOf } from "../groups.js";
import { valueOf } from "./filter-values.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("./configs.js").Configs} Configs
 */

const named = (/** @type {string} */ key) => key === "tag" || key === "project" || key.startsWith("tag:");

/** Where metrics are divided, by key and runs: a live run moves between the groups, but their bounds stay. @type {Map<string, number[] | null>} */
const divided = new Map();

/**
 * Return the names in a grouping that the configs and metrics of the runs must be fetched for.
 *
 * @param {string} by
 */
export const namesIn = (by) => keysOf(by).filter((key) => !named(key)).map((key) => readKey(key).metric);

/**
 * Return the function that names a run's group.
 *
 * @param {string} by paths of the config or their ends, metrics, "tag", "tag:name", "project", with commas between them; "" for none
 * @param {Configs} configs
 * @param {RunView[]} runs those that are grouped
 * @returns {((run: RunView) => string) | null} null if curves are not grouped, or no run has one of the keys
 */
export function grouper(by, configs, runs) {
  /** @type {NonNullable<import("../groups.js").Grouping["metrics"]>} */
  const metrics = new Map();
  const byId = new Map(runs.map((run) => [run.id, run]));
  const keys = keysOf(by).map((key) => {
    const path = named(key) ? key : configs.pathsOf(key.toLowerCase())[0];
    if (path) return path;
    const { metric, edge } = readKey(key);
    const value = (/** @type {RunView | undefined} */ run) => {
      const found = run && (valueOf(run, metric, configs) ?? valueOf(run, metric.toLowerCase(), configs));
      return typeof found === "number" ? found : null;
    };
    const measured = runs.filter((run) => value(run) !== null);
    if (!measured.length) return null;
    metrics.set(key, { value: (id) => value(byId.get(id)), edges: edge === null ? edgesAt(metric, measured, value) : [edge] });
    return key;
  });
  if (!keys.length || keys.includes(null)) return null;
  const grouping = { by: keys.join(), value: (/** @type {string} */ id, /** @type {string} */ path) => configs.value(id, path), text: specValue, metrics };
  return (run) => groupOf(run, grouping);
}

/**
 * @param {string} metric
 * @param {RunView[]} runs
 * @param {(run: RunView) => number | null} value
 */
function edgesAt(metric, runs, value) {
  const sign = `${metric} ${runs.map((run) => `${run.id}${run.ended_at ?? ""}`).join()}`;
  if (!divided.has(sign)) divided.set(sign, edgesOf(runs.map((run) => value(run) ?? NaN)));
  return divided.get(sign) ?? null;
}
