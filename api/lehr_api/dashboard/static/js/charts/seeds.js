/** Draw the runs of a group, such as those that differ only in their seed, as one curve: their mean, and a band. */

import { integer } from "../format.js";
import { indexAt } from "./points.js";

/**
 * @typedef {import("./chart.js").Line} Line
 * @typedef {import("./points.js").Curve} Curve
 */

/**
 * Return the members of each group, in the order of their first ones.
 *
 * @template T
 * @param {T[]} runs
 * @param {(run: T) => string} key
 * @returns {Map<string, T[]>}
 */
export function inGroups(runs, key) {
  /** @type {Map<string, T[]>} */
  const groups = new Map();
  for (const run of runs) groups.set(key(run), [...(groups.get(key(run)) ?? []), run]);
  return groups;
}

/** @param {Curve} curve @param {number} step @returns {number} NaN before its first point and after its last */
const valueAt = (curve, step) => (
  step < curve.step[0] || step > (curve.step.at(-1) ?? -1) ? NaN : curve.y[indexAt(curve.step, step)]
);

/**
 * Return the mean of those curves that have a value, with minimum and maximum as the band.
 *
 * @param {Curve[]} curves each with points
 * @returns {Curve}
 */
export function meanCurve(curves) {
  const finest = curves.reduce((a, b) => (b.step.length > a.step.length ? b : a));
  const places = new Map(finest.step.map((step, i) => [step, finest.x[i]]));
  // Where the finest has none, before and after it, the points of the others.
  for (const { step, x } of curves) {
    step.forEach((one, i) => (one < finest.step[0] || one > (finest.step.at(-1) ?? -1)) && places.set(one, x[i]));
  }
  /** @type {Curve & {whole: boolean[]}} */
  const mean = { step: [], x: [], y: [], low: [], high: [], raw: null, superseded: [], goal: finest.goal, whole: [] };
  for (const step of [...places.keys()].sort((a, b) => a - b)) {
    const values = curves.map((curve) => valueAt(curve, step)).filter(Number.isFinite);
    if (!values.length) continue;
    mean.step.push(step);
    mean.x.push(places.get(step) ?? NaN);
    mean.y.push(values.reduce((a, b) => a + b, 0) / values.length);
    mean.low?.push(Math.min(...values));
    mean.high?.push(Math.max(...values));
    mean.whole.push(values.length === curves.length);
  }
  return mean;
}

/**
 * Return which of these lines have no value at the last steps of the others, in words.
 *
 * @param {Line[]} group
 */
function dropouts(group) {
  const diverged = group.flatMap(({ curve }) => curve.step[curve.y.findLastIndex(Number.isFinite) + 1] ?? []);
  const whole = group.filter(({ curve }) => Number.isFinite(curve.y.at(-1)));
  const last = (/** @type {Line} */ { curve }) => curve.step[curve.step.length - 1];
  const ended = whole.filter((line) => line.ended).map(last).filter((step) => step < Math.max(...whole.map(last)));
  const words = (/** @type {number[]} */ steps, /** @type {string} */ what) => {
    const places = [...new Set([Math.min(...steps), Math.max(...steps)])].map(integer);
    return steps.length
      ? `, ${steps.length} ${what} at ${places.length > 1 ? "steps" : "step"} ${places.join(" to ")}`
      : "";
  };
  return words(diverged, "diverged") + words(ended, "ended");
}

/**
 * @param {Line[]} lines
 * @param {(line: Line) => string | null} groupOf
 * @param {string} [noun] what the runs of a group are
 * @returns {Line[]} one line per group, in the order of first members; lines without a group are unchanged
 */
export function bySeeds(lines, groupOf, noun = "seeds") {
  return [...inGroups(lines, (line) => groupOf(line) ?? line.run)].map(([key, all]) => {
    const group = all.filter(({ curve }) => curve.step.length);
    const [first = all[0]] = group;
    if (group.length < 2) return { ...first, label: noun === "seeds" ? first.label : `${key}, one run` };
    return {
      ...all[0], label: `${key}, mean of ${group.length} ${noun}${dropouts(group)}`, cut: false,
      members: all.map((line) => line.run), parts: group, curve: meanCurve(group.map((line) => line.curve))
    };
  });
}
