/** What a key of the filter means for a run: a field, a metric, or a path of its config. */

import { fromWire } from "../format.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("./configs.js").Configs} Configs
 */

/** @type {Record<string, string>} */
const METRICS = { loss: "train/loss", val: "val/loss", mfu: "mfu", tok: "tokens_per_s" };
/** @type {Record<string, (run: RunView) => number | null>} */
const FIELDS = {
  step: (run) => run.step,
  gpus: (run) => run.gpus,
  nodes: (run) => run.nodes,
  attempt: (run) => run.attempt,
  eta: (run) => run.eta_s,
  params: (run) => run.parameters,
  alerts: (run) => run.alerts.length,
};

/**
 * Return the values that a key means for a run: several, where paths of its own config end alike.
 *
 * @param {RunView} run
 * @param {string} key in lower case
 * @param {Configs | null} configs
 * @returns {any[]} one null if the run has no value; one undefined if nothing has this name
 */
export function valuesOf(run, key, configs) {
  if (key in FIELDS) return [FIELDS[key](run)];
  const metric = METRICS[key] ?? key;
  const latest = (/** @type {(name: string) => boolean} */ is) =>
    run.latest[Object.keys(run.latest).find((name) => is(name.toLowerCase())) ?? ""];
  const exact = latest((name) => name === metric);
  if (exact) return [fromWire(exact.value)];
  if (key in METRICS) return [null];
  const other = configs?.metrics.get(run.id)?.get(key);
  if (other !== undefined) return [fromWire(other)];
  const paths = configs?.pathsIn(run.id, key) ?? [];
  if (paths.length) return paths.map((path) => configs?.value(run.id, path));
  const varied = Object.keys(run.parameters_varied)
    .find((path) => path.toLowerCase() === key || path.toLowerCase().endsWith(`.${key}`));
  if (varied) return [run.parameters_varied[varied]];
  if (configs?.pathsOf(key).length) return [null];
  // The last word of a metric, where no path of a config ends alike: `lr` is the configured one.
  const last = latest((name) => name.endsWith(`/${key}`));
  return [last ? fromWire(last.value) : undefined];
}

/** Return the first of these values. @param {RunView} run @param {string} key @param {Configs | null} configs */
export const valueOf = (run, key, configs) => valuesOf(run, key, configs)[0];

/**
 * Return whether a value is the wanted one: as a number, or as text without regard to case, where
 * `*` stands for anything.
 *
 * @param {any} got
 * @param {string} wanted
 * @param {number | null} number the wanted value as a number
 */
export function matches(got, wanted, number) {
  if (typeof got === "number" && number !== null) {
    return got === number || Math.abs(got - number) < 1e-9 * Math.abs(number);
  }
  const text = typeof got === "string" ? got : JSON.stringify(got);
  if (!wanted.includes("*")) return text.toLowerCase() === wanted.toLowerCase();
  const pattern = wanted.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*");
  return new RegExp(`^${pattern}$`, "i").test(text);
}
