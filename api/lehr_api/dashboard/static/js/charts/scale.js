/** The scales of a chart: a range for flat curves, a unit for times. */

/** The smallest relative spread that is shown; less than that is rounding error. */
const SPREAD = 1e-4;

/**
 * Return a range for a flat curve. Scaled to its own spread, rounding errors would fill the plot.
 *
 * @param {{y: number[]}[]} traces
 * @param {boolean} log
 */
export function steady(traces, log) {
  let low = Infinity;
  let high = -Infinity;
  for (const { y } of traces) {
    for (const value of y) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (log || !Number.isFinite(size) || size === 0 || high - low > SPREAD * size) return {};
  const middle = (low + high) / 2;
  return { range: [middle - size / 10, middle + size / 10] };
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

/** How far a run must be from most others, as a multiple of their spread, to be left out: else it would flatten them. */
const FAR_RUN = 10;
/** A curve with fewer points has no outliers. */
const FEW = 5;

/** @param {number[]} values @returns {number[]} the finite ones, ascending */
const ascending = (values) => values.filter(Number.isFinite).sort((a, b) => a - b);

/**
 * Return the numbers of the curves that are far above and far below most others, by the ranges of their usual points.
 *
 * @param {number[][]} curves
 * @returns {{above: number[], below: number[]}}
 */
function farRuns(curves) {
  const ranges = curves.map((curve, i) => {
    const sorted = ascending(curve);
    const out = sorted.length < FEW ? 0 : Math.max(1, Math.ceil(OUTER * sorted.length));
    return { i, low: sorted[out], high: sorted[sorted.length - 1 - out] };
  }).filter(({ low }) => low !== undefined);
  const middle = (/** @type {number[]} */ values) => ascending(values)[Math.floor(values.length / 2)];
  const [low, high] = [middle(ranges.map((one) => one.low)), middle(ranges.map((one) => one.high))];
  const far = FAR_RUN * (high - low);
  const above = ranges.filter((one) => one.high > high + far).map(({ i }) => i);
  const below = ranges.filter((one) => one.low < low - far).map(({ i }) => i);
  return far > 0 && 2 * (above.length + below.length) < ranges.length ? { above, below } : { above: [], below: [] };
}

/**
 * Return a range that neither a few outliers nor a few runs decide, how many points of the others are outside of it, and the
 * numbers of those runs.
 *
 * @param {number[][]} curves
 * @returns {{range: [number, number], outside: number, above: number[], below: number[]} | null} null if nothing is far from the rest
 */
export function robust(curves) {
  const { above, below } = farRuns(curves);
  const sorted = ascending(curves.filter((_, i) => !above.includes(i) && !below.includes(i)).flat());
  const out = sorted.length < ENOUGH ? 0 : Math.max(1, Math.ceil(OUTER * sorted.length));
  const [low, high] = [sorted[out], sorted[sorted.length - 1 - out]];
  const spread = high - low;
  if (!(spread > 0)) return null;
  const [under, over] = [sorted[0] < low - FAR * spread, sorted[sorted.length - 1] > high + FAR * spread];
  if (!under && !over && !above.length && !below.length) return null;
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
  for (let n = Math.ceil((low - slack) / step); n * step <= high + slack; n += 1) found.push(Number((n * step).toPrecision(12)));
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
