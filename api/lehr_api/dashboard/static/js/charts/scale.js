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
