/** The axes of one chart: their ranges, and ticks with labels in the unit of the values. */

import { integer, isShare, metric, scientific, si } from "../format.js";
import { linearTicks, logTicks, robust, steady } from "./scale.js";

/**
 * @typedef {object} Axis
 * @property {number} low
 * @property {number} high
 * @property {boolean} log
 * @property {{value: number, text: string}[]} ticks
 */

const PREFIXES = ["n", "µ", "m", "", "k", "M", "G", "T", "P"];

/** @param {number} value @param {number} step between two ticks */
function plain(value, step) {
  if (Math.max(Math.abs(value), step) >= 1e7 || (step < 1e-5 && value !== 0)) return scientific(value);
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
    .replace("-", "−");
}

/**
 * Label with an SI prefix that fits the largest tick: 0.5 ms and 1 ms, never 500 µs beside 1 ms.
 *
 * @param {number} value
 * @param {number} step
 * @param {number} largest
 * @param {string} unit
 */
function prefixed(value, step, largest, unit) {
  if (value === 0) return `0${unit}`;
  const power = Math.min(5, Math.max(-3, Math.floor(Math.log10(largest || 1) / 3 + 1e-9)));
  const size = 1000 ** power;
  return `${plain(value / size, step / size)}${PREFIXES[power + 3]}${unit}`;
}

/**
 * Return the labels of evenly spaced ticks, all with as many decimals as they need.
 *
 * @param {number[]} values
 * @param {string} name of the metric
 */
export function labels(values, name) {
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) : Math.abs(values[0]) || 1;
  const largest = Math.max(...values.map(Math.abs));
  if (name.endsWith("_bytes")) return values.map((value) => prefixed(value, step, largest, "B"));
  if (isShare(name)) return values.map((value) => `${plain(value * 100, step * 100)}%`);
  if (name.endsWith("per_s")) return values.map((value) => prefixed(value, step, largest, ""));
  if (name.endsWith("_s")) return values.map((value) => prefixed(value, step, largest, "s"));
  return values.map((value) => plain(value, step));
}

/**
 * Return the x axis: the range of the data, and about `most` ticks.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @param {{x: "step" | "tokens" | "time" | "flops", log: boolean, suffix: string}} kind
 * @returns {Axis}
 */
export function xAxis(low, high, most, { x, log, suffix }) {
  // A single point is in the middle.
  const [first, last] = low < high ? [low, high] : log ? [low / 2, low * 2] : [low - 1, low + 1];
  const values = log ? logTicks(first, last, most) : linearTicks(first, last, most, x === "step" ? 1 : 0);
  const step = values.length > 1 ? values[1] - values[0] : 1;
  const largest = Math.max(...values.map(Math.abs));
  /** @type {(value: number) => string} */
  let text = (value) => `${plain(value, step)}${suffix}`;
  if (x === "step") text = integer;
  else if (x === "flops") text = (value) => scientific(value);
  else if (log) text = (value) => si(value) + suffix;
  else if (x === "tokens") text = (value) => prefixed(value, step, largest, "");
  return { low: first, high: last, log, ticks: values.map((value) => ({ value, text: text(value) })) };
}

/**
 * Decide whether an axis is logarithmic: values at or below zero have no place on it.
 *
 * @param {import("./chart.js").Line[]} lines
 * @param {boolean} wanted
 * @returns {{log: boolean, note: string | null}} `note`: what is not drawn as wanted
 */
export function logOf(lines, wanted) {
  if (!wanted) return { log: false, note: null };
  const values = lines.flatMap(({ curve }) => curve.y);
  const lost = values.filter((value) => value <= 0).length;
  if (!values.some((value) => value > 0)) {
    return { log: false, note: lost ? "not logarithmic: no value above 0" : null };
  }
  return { log: true, note: lost ? `${integer(lost)} ${lost === 1 ? "point" : "points"} at or below 0` : null };
}

/**
 * @param {NonNullable<ReturnType<typeof robust>>} clipped
 * @param {import("./chart.js").Line[]} lines
 * @param {boolean} named whether several runs are named
 */
function outsideOf({ above, below, outside }, lines, named) {
  const runs = (/** @type {number[]} */ far, /** @type {string} */ where) => (
    far.length
      ? [
        far.length === 1
          ? `${lines[far[0]].label} is ${where}`
          : `${far.length} are ${where}${named ? `: ${far.map((i) => lines[i].label).join("; ")}` : ""}`,
      ]
      : []
  );
  return [...runs(above, "above"), ...runs(below, "below"), ...(outside ? [`${integer(outside)} outside`] : [])]
    .join(" · ");
}

/**
 * Return the y axis, and which runs and how many points are outside of it.
 *
 * @param {string} name
 * @param {import("./chart.js").Line[]} lines
 * @param {{y: number[]}[]} traces
 * @param {boolean} log
 * @param {import("./menu.js").Own} own
 * @returns {{axis: Axis, outside: string, named: string}} `outside`: in words, empty for none; `named`: with the names
 *   of several
 */
export function yAxis(name, lines, traces, log, own) {
  const given = own.range;
  let low = Infinity;
  let high = -Infinity;
  for (const { y } of traces) {
    for (const value of y) {
      if (!Number.isFinite(value) || (log && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!(low <= high)) [low, high] = log ? [0.1, 10] : [0, 1];
  if (log) {
    if (given && given[0] > 0) [low, high] = given;
    else if (given) high = given[1];
    const room = given ? 1 : low < high ? (high / low) ** 0.04 : 2;
    const range = { low: low / room, high: high * room };
    return {
      axis: { ...range, log, ticks: logTicks(range.low, range.high, 5).map(
        (value) => ({ value, text: metric(name, value).replace(" tok/s", "") })
      ) },
      outside: "", named: "",
    };
  }
  // One run that diverges takes the mean of its group with it.
  const runs = lines.flatMap((line) => line.parts ?? [line]);
  const clipped = own.all || given
    ? null
    : robust(runs.map(({ curve }) => curve.y), runs.some(({ curve }) => curve.goal));
  const range = given ?? clipped?.range ?? steady(low, high);
  if (range) [low, high] = range;
  else {
    const room = (high - low || Math.abs(high) || 1) / 18;
    [low, high] = [low - room, high + room];
  }
  const values = linearTicks(low, high, 5);
  const texts = labels(values, name);
  return {
    axis: { low, high, log, ticks: values.map((value, i) => ({ value, text: texts[i] })) },
    outside: clipped ? outsideOf(clipped, runs, false) : "", named: clipped ? outsideOf(clipped, runs, true) : "",
  };
}

/**
 * Return the scale of an axis: between values and pixels from its beginning.
 *
 * @param {Axis} axis
 * @param {number} length in pixels
 * @param {boolean} [down] whether the first pixel has the highest value
 * @returns {{pixel: (value: number) => number, value: (pixel: number) => number}}
 */
export function scaleOf({ low, high, log }, length, down = false) {
  const at = (/** @type {number} */ value) => (log ? Math.log10(value) : value);
  const first = at(down ? high : low);
  const perPixel = (at(down ? low : high) - first) / length;
  return {
    pixel: (value) => (at(value) - first) / perPixel,
    value: (pixel) => (log ? 10 ** (first + pixel * perPixel) : first + pixel * perPixel),
  };
}
