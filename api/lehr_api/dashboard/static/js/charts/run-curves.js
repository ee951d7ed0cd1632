/** The curve of a run with that of its ancestors, and the range of x of several curves. */

import { computed, isExpression, parseExpression } from "./expression.js";
import { continued } from "./points.js";

/**
 * @typedef {object} BoardRun
 * @property {string} id
 * @property {string} label
 * @property {() => import("../colour.js").Stroke} stroke called for each drawing, because the theme may change
 * @property {boolean} [hidden]
 * @property {number | null} [flopsPerToken]
 * @property {boolean} [cut] whether it was pruned
 * @property {string | null} [group] the key shared by runs that differ only in their seed
 * @property {string[]} [metrics] metrics that the run is known to have
 * @property {string | null} [parent] the run that it was forked from
 * @property {boolean} [ended] whether it has no more points to come
 * @property {number} [attempt] the newest attempt: another one may go back in steps
 */

/**
 * Return a run's curve, continuing those of the runs that it was forked from.
 *
 * @param {(import("./feed.js").Feed["curves"] | undefined)[]} line curves of the run and its ancestors
 * @param {string} name of a metric, or an expression
 */
export function curveOf(line, name) {
  const of = (/** @type {string} */ one) =>
    line.map((curves) => curves?.get(one)).reduceRight((parent, own) => (own ? continued(parent, own) : parent));
  if (!line[0]) return undefined;
  if (!isExpression(name)) return line[0].has(name) ? of(name) : undefined;
  const found = computed(parseExpression(name), of);
  return found && {
    ...found,
    forkedAt: parseExpression(name).metrics.map((one) => of(one)?.forkedAt).find((step) => step !== undefined),
  };
}

/**
 * Return the first and last x of all curves.
 *
 * @param {number[][]} xs
 * @param {boolean} logarithmic
 * @returns {[number, number] | null}
 */
export function spanOf(xs, logarithmic) {
  let first = Infinity;
  let last = -Infinity;
  for (const x of xs) {
    if (!x.length) continue;
    // A logarithmic axis begins with the first positive value.
    first = Math.min(first, logarithmic ? (x.find((one) => one > 0) ?? Infinity) : x[0]);
    last = Math.max(last, x[x.length - 1]);
  }
  return first < last ? [first, last] : null;
}

/** Steps of the end of an axis that grows, as a share of its length. */
const STEPS = 32;

/**
 * Return a range with room at its end, up to a thirty-second of it: an axis that followed each point
 * would move all curves each time, also those without a new one.
 *
 * @param {[number, number] | null} span
 * @returns {[number, number] | null}
 */
export function roomy(span) {
  if (!span) return null;
  const [first, last] = span;
  const step = 2 ** Math.floor(Math.log2(last - first)) / STEPS;
  return [first, first + Math.ceil((last - first) / step - 1e-9) * step];
}
