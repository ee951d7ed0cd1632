/** The axes and scales of one chart: their ranges, and ticks with labels in the unit of the values. */

import { clock, hoursIn, integer, isShare, metric, scientific, si } from "../format.js";

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
  if (/(^|\/)lr$/.test(name)) return values.map((value) => scientific(value));
  if (isShare(name)) return values.map((value) => `${plain(value * 100, step * 100)}%`);
  if (name.endsWith("per_s")) return values.map((value) => prefixed(value, step, largest, /bytes/.test(name) ? "B/s" : ""));
  if (name.endsWith("_s")) return values.map((value) => prefixed(value, step, largest, "s"));
  return values.map((value) => plain(value, step));
}

/**
 * Return the x axis: the range of the data, and about `most` ticks.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} most
 * @param {{x: import("./lines.js").Look["x"], log: boolean, suffix: string}} kind
 * @returns {Axis}
 */
export function xAxis(low, high, most, { x, log, suffix }) {
  // A single point is in the middle.
  const [first, last] = low < high ? [low, high] : log ? [low / 2, low * 2] : [low - 1, low + 1];
  const linear = () => (
    x === "clock" ? hoursIn(first, last) : linearTicks(first, last, most, x === "step" ? 1 : 0)
  );
  const values = log ? logTicks(first, last, most) : linear();
  const step = values.length > 1 ? values[1] - values[0] : 1;
  const largest = Math.max(...values.map(Math.abs));
  /** @type {(value: number) => string} */
  let text = (value) => `${plain(value, step)}${suffix}`;
  if (x === "step") text = integer;
  else if (x === "clock") text = clock;
  else if (x === "flops") text = (value) => scientific(value);
  else if (log) text = (value) => si(value) + suffix;
  else if (x === "tokens") text = (value) => prefixed(value, step, largest, "");
  return { low: first, high: last, log, ticks: values.map((value) => ({ value, text: text(value) })) };
}

/** @typedef {{step: number, x: number}} Point */

/** Say at which step, or time, a point is. @param {import("./lines.js").Look["x"]} kind @param {Point} point */
export const stepOf = (kind, { step, x }) => (kind === "clock" ? clock(x) : `step ${integer(step)}`);

/** Say where on its axis a point is. @param {import("./lines.js").Look["x"]} kind @param {Point} point */
export const whereOf = (kind, point) => (
  kind === "flops" ? `${scientific(point.x)} FLOPs` : kind === "tokens" ? si(point.x, "tokens") : stepOf(kind, point)
);

/**
 * Decide whether an axis is logarithmic: values at or below zero have no place on it.
 *
 * @param {import("./lines.js").Line[]} lines
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
 * @param {import("./lines.js").Line[]} lines
 * @param {boolean} named whether several runs are named
 */
function outsideOf({ above, below, outside }, lines, named) {
  const runs = (/** @type {number[]} */ far, /** @type {string} */ where) => {
    const names = named || far.length === 1 ? `: ${far.map((i) => lines[i].label).join("; ")}` : "";
    return far.length ? [`${far.length} ${far.length === 1 ? "is" : "are"} ${where}${names}`] : [];
  };
  return [...runs(above, "above"), ...runs(below, "below"), ...(outside ? [`${integer(outside)} outside`] : [])]
    .join(" · ");
}

/**
 * Return the y axis, and which runs and how many points are outside of it.
 *
 * @param {string} name
 * @param {import("./lines.js").Line[]} lines
 * @param {{y: number[], low?: number[]}[]} traces
 * @param {boolean} log
 * @param {import("./toolbar.js").Own} own
 * @returns {{axis: Axis, outside: string, named: string}} `outside`: in words, empty for none; `named`: with the names
 *   of several
 */
export function yAxis(name, lines, traces, log, own) {
  const given = own.range;
  let low = Infinity;
  let high = -Infinity;
  for (const { y, low: bottom = [] } of traces) {
    for (const value of [...y, ...bottom]) {
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
  const judged = lines.some(({ curve }) => curve.goal && !curve.speed);
  const clipped = own.all || given ? null : robust(lines.map(({ curve }) => curve.y), judged);
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
    outside: clipped ? outsideOf(clipped, lines, false) : "", named: clipped ? outsideOf(clipped, lines, true) : "",
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

/** The smallest relative spread that is shown; less than that is rounding error. */
const SPREAD = 1e-4;

/**
 * Return a range for a flat curve, null for others. Scaled to its own spread, rounding errors would fill the plot.
 *
 * @param {number} low
 * @param {number} high
 */
export function steady(low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const middle = (low + high) / 2;
  return size === 0 || high - low > SPREAD * size ? null : [middle - size / 10, middle + size / 10];
}

/**
 * Return the largest unit of time that keeps the numbers readable.
 *
 * @param {number} longest
 * @returns {[number, string]}
 */
export function timeUnit(longest) {
  if (longest > 2 * 86400) return [86400, " d"];
  if (longest > 2 * 3600) return [3600, " h"];
  if (longest > 120) return [60, " m"];
  return [1, " s"];
}

const OUTER = 0.01;
/** How far from most points a point must be to be left out, as a multiple of their spread. */
const FAR = 3;
const ENOUGH = 30;

/**
 * How far a run must be from most others, as a multiple of their spread, to be left out: else it would flatten them.
 */
const FAR_RUN = 10;

/** Return the finite values in their order, and the range, of many without the outer ones. @param {number[]} values */
function inner(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const out = sorted.length < ENOUGH ? 0 : Math.ceil(OUTER * sorted.length);
  return { sorted, low: sorted[out], high: sorted[sorted.length - 1 - out] };
}

/**
 * Return a range that neither a few outliers nor a few runs decide.
 *
 * @param {number[][]} curves
 * @param {boolean} [judged] whether a run can be far: of a speed, or a metric without a goal, none is worse than
 *   others
 * @returns {{range: [number, number], outside: number, above: number[], below: number[]} | null} null if nothing is far
 *   from the rest; `above` and `below`: the numbers of the curves that are; `outside`: how many points of the others
 */
export function robust(curves, judged = true) {
  const ranges = curves.map(inner);
  const middle = (/** @type {number[]} */ values, { sorted } = inner(values)) => sorted[sorted.length >> 1];
  const usual = { low: middle(ranges.map(({ low }) => low)), high: middle(ranges.map(({ high }) => high)) };
  // Curves of one point are flat: then the spread of the middle half of them counts.
  const lows = inner(ranges.map(({ low }) => low)).sorted;
  const reach = FAR_RUN * Math.max(usual.high - usual.low, lows[(3 * lows.length) >> 2] - lows[lows.length >> 2]);
  const far = (/** @type {(range: {low: number, high: number}) => boolean} */ isFar) => (
    judged && reach > 0 ? ranges.flatMap((range, i) => (isFar(range) ? [i] : [])) : []
  );
  let [above, below] = [far(({ high }) => high > usual.high + reach), far(({ low }) => low < usual.low - reach)];
  // Of two, neither is far from most.
  if (2 * (above.length + below.length) >= ranges.filter(({ low }) => low !== undefined).length) {
    [above, below] = [[], []];
  }
  const { sorted, low, high } = inner(curves.filter((_, i) => !above.includes(i) && !below.includes(i)).flat());
  const spread = high - low;
  const some = sorted.length >= ENOUGH;
  const [under, over] = [
    some && sorted[0] < low - FAR * spread, some && sorted[sorted.length - 1] > high + FAR * spread,
  ];
  if (!(spread > 0) || !(under || over || above.length || below.length)) return null;
  const bottom = under ? low - spread / 4 : sorted[0] - spread / 20;
  const top = over ? high + spread / 4 : sorted[sorted.length - 1] + spread / 20;
  return { range: [bottom, top], outside: sorted.filter((v) => v < bottom || v > top).length, above, below };
}

/**
 * Return round values for the ticks of an axis: 1, 2 or 5 times a power of ten apart.
 *
 * @param {number} low
 * @param {number} high above `low`
 * @param {number} most
 * @param {number} [least] smallest distance
 * @returns {number[]}
 */
export function linearTicks(low, high, most, least = 0) {
  const rough = Math.max((high - low) / Math.max(1, most), least);
  const size = 10 ** Math.floor(Math.log10(rough) + 1e-9);
  const step = [1, 2, 5, 10].map((n) => n * size).find((n) => n >= rough * (1 - 1e-9)) ?? rough;
  const found = [];
  const slack = step * 1e-9;
  for (let n = Math.ceil((low - slack) / step); n * step <= high + slack; n += 1) {
    found.push(Number((n * step).toPrecision(12)));
  }
  return found;
}

/**
 * Return round values for the ticks of a logarithmic axis: at least two, whatever it spans.
 *
 * @param {number} low above 0
 * @param {number} high
 * @param {number} most
 * @returns {number[]}
 */
export function logTicks(low, high, most) {
  const decades = Math.log10(high / low);
  const steps = decades > most ? [1] : decades > most / 3 ? [1, 3] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(decades / most));
  /** @type {number[]} */
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every) {
    for (const step of steps) {
      const value = Number(`${step}e${power}`);
      if (value >= low && value <= high) found.push(value);
    }
  }
  if (found.length >= 3) return found;
  // Less than a decade: equal steps, as on a linear axis.
  const linear = linearTicks(low, high, Math.max(2, Math.min(most, 5)));
  return linear.length > found.length ? linear : found;
}
