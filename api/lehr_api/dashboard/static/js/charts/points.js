/** Points of a curve: parse them, find them by step, append new ones. */

/**
 * @typedef {object} Points
 * @property {number[]} step
 * @property {number[]} x
 * @property {number[]} y NaN where the value is not finite
 * @property {number[] | null} low
 * @property {number[] | null} high
 * @property {"minimize" | "maximize" | null} [goal] of the metric
 * @property {boolean} [speed] whether it measures a machine and no model
 * @property {number} [members] of how many runs it is the mean, with a standard deviation below and above it
 * @property {boolean[] | null} [whole] of a mean: whether all have a value
 * @property {string} [dropouts] of a mean: who has none at its end, in words
 *
 * @typedef {Points & {raw: Points | null, superseded: Points[], forkedAt?: number}} Curve
 *   `forkedAt`: the first step that is the run's own; those before are of the run that it was forked from
 */

/** @param {import("../types.js").WireNumber[]} wire */
const numbers = (wire) => wire.map((value) => Number(value ?? NaN));

/**
 * @param {Pick<import("../types.js").Series, "step" | "x" | "y" | "low" | "high"> &
 *   Partial<import("../types.js").Series>} series
 * @returns {Points}
 */
export function points(series) {
  return {
    step: series.step,
    x: numbers(series.x),
    y: numbers(series.y),
    low: series.low && numbers(series.low),
    high: series.high && numbers(series.high),
    goal: series.goal,
    speed: series.speed,
    members: series.members,
    whole: series.counts?.map((count) => count === series.members),
    dropouts: series.dropouts,
  };
}

/** Return the index of the last point at or before x; 0 if there is none. @param {number[]} xs @param {number} x */
export function indexAt(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

/**
 * Return the position of a step on the x axis, interpolated between its neighbours.
 *
 * @param {Pick<Points, "step" | "x">} curve
 * @param {number} step
 * @returns {number | null} null outside the curve
 */
export function xOfStep(curve, step) {
  const { step: steps, x } = curve;
  if (!steps.length || step < steps[0] || step > steps[steps.length - 1]) return null;
  const i = indexAt(steps, step);
  if (steps[i] === step || i + 1 >= steps.length) return x[i];
  return x[i] + ((step - steps[i]) / (steps[i + 1] - steps[i])) * (x[i + 1] - x[i]);
}

/**
 * Return the old points before the first new step, followed by the new points.
 *
 * @param {Points} old
 * @param {Points} fresh
 * @returns {Points}
 */
export function joined(old, fresh) {
  if (!fresh.step.length) return old;
  const first = fresh.step[0];
  let keep = old.step.length;
  while (keep > 0 && old.step[keep - 1] >= first) keep -= 1;
  /** A curve without a range is its own range. @param {"step" | "x" | "y" | "low" | "high"} key @returns {any} */
  const join = (key) =>
    (old[key] || fresh[key] ? (old[key] ?? old.y).slice(0, keep).concat(fresh[key] ?? fresh.y) : null);
  const { goal, members, dropouts } = fresh;
  const whole = fresh.whole && [...old.step.slice(0, keep).map(() => true), ...fresh.whole];
  return {
    step: join("step"), x: join("x"), y: join("y"), low: join("low"), high: join("high"), goal, members,
    whole, dropouts,
  };
}

/**
 * Return whether a curve has a value at a step: it has begun, and its next point is not overdue.
 *
 * @param {Pick<Points, "step">} curve
 * @param {number} step
 */
export function reaches(curve, step) {
  const steps = curve.step;
  if (!steps.length || step < steps[0]) return false;
  const last = steps[steps.length - 1];
  const spacing = steps.length > 1 ? last - steps[steps.length - 2] : 0;
  return step <= last + spacing;
}

/**
 * Return the curve of a fork, which begins with that of its parent: the fork continues it.
 *
 * @param {Curve | undefined} parent
 * @param {Curve | undefined} own
 * @returns {Curve | undefined}
 */
export function continued(parent, own) {
  if (!own?.step.length || !parent?.step.length || parent.step[0] >= own.step[0]) return own;
  const raw = own.raw && parent.raw ? joined(parent.raw, own.raw) : own.raw;
  return { ...joined(parent, own), raw, superseded: own.superseded, forkedAt: own.step[0] };
}

/**
 * Return the point of any of these curves that is nearest to an x.
 *
 * @param {Curve[]} curves
 * @param {number} x
 * @returns {{step: number, x: number, run: null} | null} null without points
 */
export function nearestPoint(curves, x) {
  let nearest = null;
  let distance = Infinity;
  for (const curve of curves) {
    const i = indexAt(curve.x, x);
    for (const j of [i, i + 1]) {
      if (j < 0 || j >= curve.x.length || Math.abs(curve.x[j] - x) >= distance) continue;
      distance = Math.abs(curve.x[j] - x);
      nearest = { step: curve.step[j], x: curve.x[j], run: null };
    }
  }
  return nearest;
}

/**
 * Return the first and the last step that the curves have in a range of x.
 *
 * @param {Curve[]} curves
 * @param {number} from
 * @param {number} to
 * @returns {[number, number | null] | null} null for the last: all that come; null for fewer than two steps
 */
export function stepsBetween(curves, from, to) {
  const steps = curves.flatMap((curve) => curve.step.filter((_, i) => curve.x[i] >= from && curve.x[i] <= to));
  const first = steps.reduce((a, b) => Math.min(a, b), Infinity);
  const last = steps.reduce((a, b) => Math.max(a, b), -Infinity);
  const end = curves.reduce((most, curve) => Math.max(most, curve.step.at(-1) ?? -Infinity), -Infinity);
  return first < last ? [first, last >= end ? null : last] : null;
}

/** Return the deviation from a mean; null of what is none. @param {Points} curve @param {number} i */
export const deviationAt = ({ members = 1, low, high }, i) =>
  (members > 1 && low && high ? (high[i] - low[i]) / 2 : null);
