/** Columns for values of the configs and for any metric. What differs appears by itself. */

import * as f from "../format.js";
import { shortName } from "./configs.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("./configs.js").Configs} Configs
 * @typedef {import("./columns.js").Column} Column
 */

/**
 * How many differing paths get a column by themselves: as many as there is room for.
 *
 * @param {boolean} beside whether the curves take half of the room
 */
const byThemselves = (beside) => (globalThis.innerWidth >= (beside ? 1600 : 1300) ? 3 : 2);
/** How many differing paths the label of a run has. */
const IN_LABELS = 4;
/** How many of the newest runs are compared to find what differs. */
export const LOOKED_AT = 150;

/**
 * Return the paths in which these runs differ: those that a sweep varies first, the seed last.
 *
 * Paths that separate no more runs than earlier ones come after all others: if width and depth change
 * together, one of them is enough. Among paths of one kind, the one that separates most runs is first.
 *
 * @param {RunView[]} runs
 * @param {Configs} configs
 */
export function varyingPaths(runs, configs) {
  const some = runs.slice(0, LOOKED_AT);
  const varied = new Set(some.flatMap((run) => Object.keys(run.parameters_varied)));
  const rank = (/** @type {string} */ path) => {
    if (path === "train.seed") return 5;
    if (varied.has(path)) return 0;
    if (path.startsWith("train.optimizer.")) return 1;
    if (path.startsWith("train.model.")) return 2;
    return path.startsWith("train.data.") ? 4 : 3;
  };
  const inOrder = configs.differing(some.map((run) => run.id)).sort((a, b) => rank(a) - rank(b));
  /** Of each run, what the needed paths are in it. */
  let apart = some.map(() => "");
  const also = (/** @type {string} */ path) =>
    some.map((run, i) => `${apart[i]} ${JSON.stringify(configs.value(run.id, path) ?? null)}`);
  const groups = (/** @type {string[]} */ values) => new Set(values).size;
  /** @type {string[]} */
  const needed = [];
  for (const level of new Set(inOrder.map(rank))) {
    const alike = inOrder.filter((path) => rank(path) === level);
    for (;;) {
      const tried = alike.map((path) => ({ path, values: also(path) }));
      const best = tried.reduce((a, b) => (groups(b.values) > groups(a.values) ? b : a));
      if (groups(best.values) === groups(apart)) break;
      apart = best.values;
      needed.push(best.path);
    }
  }
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
      hint: `${name}, last`,
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
      return v === undefined || v === null
        ? null
        : typeof v === "number" || typeof v === "string"
        ? v
        : JSON.stringify(v);
    },
  };
}

/**
 * Return the names of the columns for configs and metrics: the chosen ones, or what differs.
 *
 * @param {string | null} chosen names with commas between them; null for what differs
 * @param {string[]} varying
 * @param {boolean} beside whether curves are shown beside the table
 */
export const columnNames = (chosen, varying, beside) => (
  chosen === null ? varying.slice(0, byThemselves(beside)) : chosen.split(",").filter((name) => name && name !== "none")
);
