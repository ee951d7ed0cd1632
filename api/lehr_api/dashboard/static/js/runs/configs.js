/** The configs of many runs: any path of them is a key of the filter, and what differs is a column. */

import { get } from "../api.js";
import { specValue } from "../format.js";
import * as f from "../format.js";
import { REFERENCE } from "../run/tags_archive.js";
import { COLUMNS, JUDGED, judgedColumn, metricColumn, parted, withValues } from "./columns.js";
/** @import { RunView } from "../types.js" */
/** @import { Column } from "./columns.js" */

/**
 * @typedef {{runs: string[], same: Record<string, any>, differing: Record<string, any[]>, metrics: Record<string,
 *   (number | null)[]>}} RunValues
 */

/** Runs whose values one request asks for. */
const BATCH = 150;
/** Paths that do not affect what a run learns. */
const ASIDE = /^(resources|retries|env|checkpoints|priority|time_limit_s|train\.(checkpoint|diagnostics|threads|device|compile)\b|train\.validation\.every)/;

/**
 * Return a short name of a path among others: its last word, or the last two if another ends alike, or it is "name":
 * so the name of a run is called.
 *
 * @param {string} path
 * @param {string[]} others
 */
export function shortName(path, others) {
  const last = path.split(".").at(-1) ?? path;
  const alike = others.some((one) => one !== path && one.split(".").at(-1) === last);
  return alike || last === "name" ? path.split(".").slice(-2).join(".") : last;
}

/** Where the arguments of a script of the user's own are. */
const ARGUMENTS = "trainer.args.";

export class Configs {
  constructor() {
    /** @type {Map<string, {same: Record<string, any>, own: Record<string, any>}>} */
    this.runs = new Map();
    /** @type {Map<string, Map<string, number | null>>} by run, newest values of metrics that its view lacks */
    this.metrics = new Map();
    /** The runs that are to be fetched again. @type {Set<string>} */
    this.stale = new Set();
    /** @type {Set<string>} */
    this.paths = new Set();
    /** @type {Map<string, string[]>} by key, the paths that it means */
    this.meant = new Map();
  }

  /** @param {string} id */
  lacks(id) { return !this.runs.has(id) || this.stale.has(id); }

  /**
   * Take note that a run was evaluated, or that another one is the reference.
   *
   * @param {RunView | undefined} before
   * @param {{latest: RunView["latest"], tags?: string[]}} now
   * @returns {boolean} whether something is to be fetched again
   */
  outdate(before, { latest, tags }) {
    if (!before) return false;
    if (latest["val/loss"] && latest["val/loss"].step !== before.latest["val/loss"]?.step) this.stale.add(before.id);
    if (tags && tags.includes(REFERENCE) !== before.tags.includes(REFERENCE)) {
      this.stale = new Set(this.runs.keys());
      for (const values of this.metrics.values()) {
        for (const name of values.keys()) if (name.startsWith("versus:")) values.delete(name);
      }
    }
    return this.stale.size > 0;
  }

  /**
   * Fetch the configs of those of these runs that are not here yet.
   *
   * @param {string[]} ids
   * @param {string[]} [metrics] fetch the newest values of these as well
   * @returns {Promise<boolean>} whether anything is new
   */
  async load(ids, metrics = []) {
    const missing = metrics.length ? ids : ids.filter((id) => this.lacks(id));
    for (const id of missing) this.stale.delete(id);
    for (let i = 0; i < missing.length; i += BATCH) {
      this.take(await get("/values", { run: missing.slice(i, i + BATCH), metric: [...JUDGED, ...metrics] }));
    }
    return missing.length > 0;
  }

  /** @param {RunValues} found */
  take(found) {
    this.meant.clear();
    for (const path of [...Object.keys(found.same), ...Object.keys(found.differing)]) this.paths.add(path);
    found.runs.forEach((id, i) => {
      /** @type {Record<string, any>} */
      const own = {};
      for (const [path, values] of Object.entries(found.differing)) own[path] = values[i];
      this.runs.set(id, { same: found.same, own });
      for (const [name, values] of Object.entries(found.metrics)) {
        if (values[i] === null) continue;
        const known = this.metrics.get(id) ?? new Map();
        this.metrics.set(id, known.set(name, values[i]));
      }
    });
  }

  /**
   * Return a run's value of a path. The run of a script, which lacks the setting, has it as an argument.
   *
   * @param {string} id
   * @param {string} path
   * @returns {any} undefined if its config is not here, null if it has no such path
   */
  value(id, path) {
    return this.#own(id, path) ?? this.#own(id, this.#argument(path) ?? path);
  }

  /** @param {string} id @param {string} path @returns {any} */
  #own(id, path) {
    const known = this.runs.get(id);
    if (!known) return undefined;
    return (path in known.own ? known.own[path] : known.same[path]) ?? null;
  }

  /**
   * Return the paths that a key means: itself, or those that end with it; arguments of scripts last, short ones first.
   *
   * @param {string} key in lower case
   * @returns {string[]}
   */
  pathsOf(key) {
    const known = this.meant.get(key);
    if (known) return known;
    const exact = [...this.paths].filter((path) => path.toLowerCase() === key);
    const rank = (/** @type {string} */ path) => path.length + (path.startsWith(ARGUMENTS) ? 1000 : 0);
    const paths = exact.length ? exact : [...this.paths]
      .filter((path) => path.toLowerCase().endsWith(`.${key}`)).sort((a, b) => rank(a) - rank(b));
    this.meant.set(key, paths);
    return paths;
  }

  /** Return those paths that a key means which a run has. @param {string} id @param {string} key in lower case */
  pathsIn(id, key) {
    return this.pathsOf(key).filter((path) => (this.#own(id, path) ?? null) !== null);
  }

  /**
   * Return the argument of scripts that stands for a setting: the only other path of its last word.
   *
   * @param {string} path
   */
  #argument(path) {
    const [setting, argument, ...others] = this.pathsOf((path.split(".").at(-1) ?? path).toLowerCase());
    return setting === path && argument?.startsWith(ARGUMENTS) && !others.length && !path.startsWith(ARGUMENTS)
      ? argument
      : null;
  }

  /**
   * Return the paths whose values differ between these runs, and that matter for their results.
   *
   * @param {string[]} ids
   */
  differing(ids) {
    const known = ids.filter((id) => this.runs.has(id));
    const stands = new Set([...this.paths].map((path) => this.#argument(path)));
    return [...this.paths].filter((path) => {
      if (ASIDE.test(path) || stands.has(path)) return false;
      const values = new Set(known.map((id) => JSON.stringify(this.value(id, path)) ?? "null"));
      return values.size > 1;
    });
  }

  /** Return whether a path has words as values. @param {string} path */
  isText(path) {
    return [...this.runs.keys()].some((id) => typeof this.#own(id, path) === "string");
  }
}

/** How many differing paths get a column by themselves, where there is room. */
const BY_THEMSELVES = 3;
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
  const needed = separating(inOrder, rank, (path) => some.map((run) => configs.value(run.id, path) ?? null));
  return [...needed, ...inOrder.filter((path) => !needed.includes(path))];
}

/**
 * Return the paths that are needed to tell runs apart: of each rank, again and again the one that separates most.
 *
 * @param {string[]} paths in the order of their ranks
 * @param {(path: string) => number} rank
 * @param {(path: string) => unknown[]} valuesOf the value of a path in each run
 * @returns {string[]}
 */
export function separating(paths, rank, valuesOf) {
  /** Of each run, what the needed paths are in it. @type {string[]} */
  let apart = [];
  const also = (/** @type {string} */ path) =>
    valuesOf(path).map((value, i) => `${apart[i] ?? ""} ${JSON.stringify(value)}`);
  const groups = (/** @type {string[]} */ values) => Math.max(1, new Set(values).size);
  /** @type {string[]} */
  const needed = [];
  for (const level of new Set(paths.map(rank))) {
    const alike = paths.filter((path) => rank(path) === level);
    for (;;) {
      const tried = alike.map((path) => ({ path, values: also(path) }));
      const best = tried.reduce((a, b) => (groups(b.values) > groups(a.values) ? b : a));
      if (groups(best.values) === groups(apart)) break;
      apart = best.values;
      needed.push(best.path);
    }
  }
  return needed;
}

/**
 * Label runs by their names, and by what differs between those that are drawn; trials of one sweep by that alone.
 *
 * @type {(drawn: RunView[], varying: string[], configs: Configs) => (run: RunView) => string}
 */
export function labelsOf(drawn, varying, configs) {
  const several = (/** @type {(run: RunView) => unknown} */ of) => new Set(drawn.map(of)).size > 1;
  const differing = varying.filter((path) => several(({ id }) => JSON.stringify(configs.value(id, path))))
    .slice(0, IN_LABELS);
  const named = !drawn[0]?.sweep_id || several((run) => run.sweep_id);
  return ({ id, name }) => {
    const settings = differing.filter((path) => (configs.value(id, path) ?? null) !== null)
      .map((path) => `${shortName(path, differing)} ${specValue(configs.value(id, path), path)}`);
    return (named || !settings.length ? [name, ...settings] : settings).join(" · ");
  };
}

/**
 * @param {string} name a path of the config, or a metric
 * @param {string[]} others the other columns of this kind
 * @param {Configs} configs
 * @returns {Column}
 */
export function columnOf(name, others, configs) {
  if (!configs.paths.has(name)) {
    const of = (/** @type {RunView} */ run) => run.latest[name]?.value ?? configs.metrics.get(run.id)?.get(name);
    return /^(best|versus):/.test(name) ? judgedColumn(name, of) : metricColumn(name, name, undefined, of);
  }
  const value = (/** @type {RunView} */ run) => configs.value(run.id, name);
  const plain = (/** @type {any} */ v) => (typeof v === "number" || typeof v === "string" ? v : JSON.stringify(v));
  return {
    key: name, title: shortName(name, others), hint: name, setting: true, num: !configs.isText(name),
    cell: (run) => (value(run) === undefined ? "…" : f.specCell(value(run), name)),
    sort: (run) => ((value(run) ?? null) === null ? null : plain(value(run))),
  };
}

/**
 * Return the names of the columns for configs and metrics: the chosen ones, or what differs.
 *
 * @param {string | null} chosen names with commas between them; null for what differs
 * @param {string[]} varying
 */
export const columnNames = (chosen, varying) => (
  chosen === null ? varying.slice(0, BY_THEMSELVES) : chosen.split(",").filter((name) => name && name !== "none")
);

/** @param {string} key @param {Configs} configs @returns {Column} */
export const columnNamed = (key, configs) => COLUMNS.find((one) => one.key === key) ?? columnOf(key, [key], configs);

/**
 * Return what the server judges of each run: the best val/loss, and the difference to the reference by the metric that
 * the table is sorted by.
 *
 * @param {{key: string}[]} orders @param {Configs} configs
 */
export function judgedBy(orders, configs) {
  const sorted = orders.map(({ key }) => columnNamed(key, configs).metric).find(Boolean);
  return [JUDGED[0], sorted ? `versus:${sorted}` : JUDGED[1]];
}

/**
 * Return the columns in their order, what differs beside the name; and those of which all values are the same.
 *
 * @param {{base: Column[], chosen: string | null, varying: string[], shown: RunView[], orders: {key: string}[]}} state
 * @param {Configs} configs
 * @param {number} fits how many there is room for, besides name and state; first what they are sorted by, or the loss
 */
export function columnsOf({ base, chosen, varying, shown, orders }, configs, fits) {
  const names = columnNames(chosen, varying);
  const judged = chosen === null ? judgedBy(orders, configs).map((name) => columnOf(name, [], configs)) : [];
  const place = base.findIndex(({ key }) => key === "val") + 1 || base.length;
  const own = withValues([...base.slice(0, place), ...judged, ...base.slice(place)], shown);
  const ends = own.filter(({ key }) => key === "name" || key === "state");
  const others = [...names.map((name) => columnOf(name, names, configs)), ...own.filter((one) => !ends.includes(one))];
  const { differ, alike } = parted(others, shown, ({ key }) => orders.some((one) => one.key === key));
  const sorted = orders.filter(({ key }) => !ends.some((one) => one.key === key))
    .map(({ key }) => columnNamed(key, configs));
  const usual = ["best", "val", "loss"].flatMap((key) => differ.filter((one) => one.key === key));
  const main = [...sorted, ...usual].slice(0, 1);
  const versus = differ.filter(({ key }) => key.startsWith("versus:"));
  const rest = [
    ...sorted, ...main, ...(fits === Infinity ? differ : [...versus, ...differ.filter((one) => one.sort)]),
  ].filter((one, i, all) => all.findIndex(({ key }) => key === one.key) === i);
  const columns = [...ends, ...rest.slice(0, fits)];
  return { columns: columns.map((one) => (one.key === main[0]?.key ? { ...one, main: true } : one)), alike };
}
