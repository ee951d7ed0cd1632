/** Columns for values of the configs and for any metric. What differs appears by itself. */

import * as f from "../format.js";
import { shortName } from "./configs.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("./configs.js").Configs} Configs
 * @typedef {import("./columns.js").Column} Column
 */

/** So many differing paths have a column by themselves: as many as there is room for. */
const byThemselves = () => (globalThis.innerWidth >= 1600 ? 3 : 2);
/** So many differing paths a run's label has. */
const IN_LABELS = 4;
/** Of so many of the newest runs is it looked at what differs. */
const LOOKED_AT = 200;

/**
 * Return the paths in which these runs differ, those that a sweep varies first.
 *
 * @param {RunView[]} runs
 * @param {Configs} configs
 */
export function varyingPaths(runs, configs) {
  const some = runs.slice(0, LOOKED_AT);
  const differing = configs.differing(some.map((run) => run.id));
  const varied = new Set(some.flatMap((run) => Object.keys(run.parameters_varied)));
  const order = (/** @type {string} */ path) => (varied.has(path) ? 0 : path.startsWith("train.optimizer.") ? 1 : path.startsWith("train.model.") ? 2 : path.startsWith("train.data.") ? 4 : 3);
  const inOrder = differing.sort((a, b) => order(a) - order(b));
  // First the paths that separate runs which earlier paths do not: if width and depth change together, one of them is enough.
  const groups = (/** @type {string[]} */ paths) => new Set(some.map((run) => JSON.stringify(paths.map((path) => configs.value(run.id, path) ?? null)))).size;
  /** @type {string[]} */
  const needed = [];
  for (const path of inOrder) if (groups([...needed, path]) > groups(needed)) needed.push(path);
  return [...needed, ...inOrder.filter((path) => !needed.includes(path))];
}

/** @param {string[]} varying */
export const forLabels = (varying) => varying.slice(0, IN_LABELS);

/**
 * @param {string} name a path of the config, or a metric
 * @param {string[]} others the other columns of this kind
 * @param {Configs} configs
 * @returns {Column}
 */
export function columnOf(name, others, configs) {
  const ofMetric = (/** @type {RunView} */ run) => run.latest[name]?.value ?? configs.metrics.get(run.id)?.get(name);
  if (!configs.paths.has(name)) {
    return {
      key: name,
      title: name,
      hint: `${name}, newest`,
      num: true,
      cell: (run) => f.metric(name, ofMetric(run)),
      sort: (run) => f.fromWire(ofMetric(run)),
    };
  }
  const value = (/** @type {RunView} */ run) => configs.value(run.id, name);
  return {
    key: name,
    title: shortName(name, others),
    hint: name,
    num: true,
    cell: (run) => (value(run) === undefined ? "…" : f.specCell(value(run), name)),
    sort: (run) => {
      const v = value(run);
      return v === undefined || v === null ? null : typeof v === "number" || typeof v === "string" ? v : JSON.stringify(v);
    },
  };
}

/**
 * Return the names of the columns for configs and metrics: the chosen ones, or what differs.
 *
 * @param {string | null} chosen names with commas between them; null for what differs
 * @param {string[]} varying
 */
export const columnNames = (chosen, varying) => (chosen === null ? varying.slice(0, byThemselves()) : chosen.split(",").filter((name) => name && name !== "none"));
