/** The configs of many runs: any path of them is a key of the filter, and what differs is a column. */

import { get } from "../api.js";
import { specValue } from "../format.js";

/** @typedef {{runs: string[], same: Record<string, any>, differing: Record<string, any[]>, metrics: Record<string, (number | null)[]>}} RunValues */

/** Runs whose values one request asks for. */
const BATCH = 150;
/** Paths that do not affect what a run learns. */
const ASIDE = /^(resources|retries|env|checkpoints|priority|time_limit_s|train\.(checkpoint|diagnostics|threads|device|compile)\b|train\.validation\.every)/;

/**
 * Return a short name of a path among others: its last word, or the last two if another ends alike.
 *
 * @param {string} path
 * @param {string[]} others
 */
export function shortName(path, others) {
  const last = path.split(".").at(-1) ?? path;
  const alike = others.some((one) => one !== path && one.split(".").at(-1) === last);
  return alike ? path.split(".").slice(-2).join(".") : last;
}

export class Configs {
  constructor() {
    /** @type {Map<string, {same: Record<string, any>, own: Record<string, any>}>} */
    this.runs = new Map();
    /** @type {Map<string, Map<string, number | null>>} by run, newest values of metrics that its view lacks */
    this.metrics = new Map();
    /** @type {Set<string>} */
    this.paths = new Set();
  }

  /**
   * Fetch the configs of those of these runs that are not here yet.
   *
   * @param {string[]} ids
   * @param {string[]} [metrics] fetch the newest values of these as well
   * @returns {Promise<boolean>} whether anything is new
   */
  async load(ids, metrics = []) {
    const missing = metrics.length ? ids : ids.filter((id) => !this.runs.has(id));
    for (let i = 0; i < missing.length; i += BATCH) {
      this.take(await get("/values", { run: missing.slice(i, i + BATCH), metric: metrics }));
    }
    return missing.length > 0;
  }

  /** @param {RunValues} found */
  take(found) {
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
   * @param {string} id
   * @param {string} path
   * @returns {any} undefined if the run or the path is not known
   */
  value(id, path) {
    const known = this.runs.get(id);
    if (!known) return undefined;
    return path in known.own ? known.own[path] : known.same[path];
  }

  /**
   * Return the path that a key means: itself, or the shortest that ends with it.
   *
   * @param {string} key in lower case
   */
  pathOf(key) {
    let found = null;
    for (const path of this.paths) {
      const lower = path.toLowerCase();
      if (lower === key) return path;
      if (lower.endsWith(`.${key}`) && (found === null || path.length < found.length)) found = path;
    }
    return found;
  }

  /**
   * Return the paths whose values differ between these runs, and that matter for their results.
   *
   * @param {string[]} ids
   */
  differing(ids) {
    const known = ids.filter((id) => this.runs.has(id));
    return [...this.paths].filter((path) => {
      if (ASIDE.test(path)) return false;
      const values = new Set(known.map((id) => JSON.stringify(this.value(id, path)) ?? "null"));
      return values.size > 1;
    });
  }

  /**
   * Describe a run by its values of these paths: "lr 3.0e-3 · wd 0.1".
   *
   * @param {string} id
   * @param {string[]} paths
   */
  label(id, paths) {
    return paths
      .filter((path) => this.value(id, path) !== undefined && this.value(id, path) !== null)
      .map((path) => `${shortName(path, paths)} ${specValue(this.value(id, path), path)}`)
      .join(" · ");
  }
}
