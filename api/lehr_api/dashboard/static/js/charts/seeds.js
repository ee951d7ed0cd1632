/** Draw the runs of a group, such as those that differ only in their seed, as one curve: their mean, and a band. */

import { indexAt } from "./points.js";

/**
 * @typedef {import("./chart.js").Line} Line
 * @typedef {import("./points.js").Curve} Curve
 */

/**
 * Return the mean over the steps that every curve has reached, with minimum and maximum as the band.
 *
 * @param {Curve[]} curves
 * @returns {Curve}
 */
export function meanCurve(curves) {
  const finest = curves.reduce((a, b) => (b.step.length > a.step.length ? b : a));
  const first = Math.max(...curves.map((curve) => curve.step[0] ?? Infinity));
  const last = Math.min(...curves.map((curve) => curve.step.at(-1) ?? -Infinity));
  /** @type {Curve} */
  const mean = { step: [], x: [], y: [], low: [], high: [], raw: null, superseded: [] };
  finest.step.forEach((step, i) => {
    if (step < first || step > last) return;
    const values = curves.map((curve) => curve.y[indexAt(curve.step, step)]);
    mean.step.push(step);
    mean.x.push(finest.x[i]);
    mean.y.push(values.reduce((a, b) => a + b, 0) / values.length);
    mean.low?.push(Math.min(...values));
    mean.high?.push(Math.max(...values));
  });
  return mean;
}

/**
 * @param {Line[]} lines
 * @param {(line: Line) => string | null} groupOf
 * @param {string} [noun] what the runs of a group are
 * @returns {Line[]} one line per group, in the order of first members; lines without a group are unchanged
 */
export function bySeeds(lines, groupOf, noun = "seeds") {
  /** @type {Map<string, Line[]>} */
  const groups = new Map();
  for (const line of lines) {
    const key = groupOf(line) ?? line.run;
    groups.set(key, [...(groups.get(key) ?? []), line]);
  }
  return [...groups].map(([key, group]) =>
    group.length === 1 ? { ...group[0], label: noun === "seeds" ? group[0].label : `${key}, one run` } : { ...group[0], label: `${key}, mean of ${group.length} ${noun}`, cut: false, members: group.map((line) => line.run), curve: meanCurve(group.map((line) => line.curve)) },
  );
}
