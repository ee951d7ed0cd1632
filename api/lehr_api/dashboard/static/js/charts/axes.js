/** The axes of one chart: units, labelled ticks of logarithmic ones, a range without outliers. */

import { metric } from "../format.js";
import { logTicks, robust, steady } from "./scale.js";

/**
 * Return the number format and unit of the y axis where Plotly's default differs from `metric`.
 *
 * @param {string} name
 */
export function ticks(name) {
  if (name.endsWith("_bytes")) return { tickformat: "~s", ticksuffix: "B" };
  if (name === "mfu" || name.endsWith("_share") || name.endsWith("acc")) return { tickformat: "~p" };
  if (name.endsWith("per_s")) return { tickformat: "~s" };
  // With SI prefixes (2.15ms, 1.2s), because times range from microseconds to minutes.
  return name.endsWith("_s") ? { tickformat: "~s", ticksuffix: "s" } : {};
}

/**
 * Return labelled ticks of a logarithmic axis.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @param {(v: number) => string} label
 */
export function logAxis(low, high, most, label) {
  const values = logTicks(low, high, most);
  return { tickvals: values, ticktext: values.map(label) };
}

/**
 * Return the part of the y axis that the values decide, and how many points are outside of it.
 *
 * @param {string} name
 * @param {import("./chart.js").Line[]} lines
 * @param {any[]} traces
 * @param {boolean} log
 * @param {import("./menu.js").Own} own
 * @returns {{axis: object, outside: number}}
 */
export function yRange(name, lines, traces, log, own) {
  const given = own.range;
  if (log) {
    const positive = traces.flatMap(({ y }) => y).filter((/** @type {number} */ v) => v > 0 && Number.isFinite(v));
    const low = given && given[0] > 0 ? given[0] : positive.reduce((a, b) => Math.min(a, b), Infinity);
    const high = given ? given[1] : positive.reduce((a, b) => Math.max(a, b), -Infinity);
    if (!(low < high)) return { axis: {}, outside: 0 };
    const room = given ? 0 : 0.04 * Math.log10(high / low);
    return { axis: { range: [Math.log10(low) - room, Math.log10(high) + room], ...logAxis(low, high, 5, (v) => metric(name, v)) }, outside: 0 };
  }
  if (given) return { axis: { range: given }, outside: 0 };
  const clipped = own.all ? null : robust(lines.map(({ curve }) => curve.y));
  return clipped ? { axis: { range: clipped.range }, outside: clipped.outside } : { axis: steady(traces, log), outside: 0 };
}
