/** The scales of a chart: a range for flat curves, a unit for times. */

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

/** Return the finite values in their order, and the range of all but the outer ones. @param {number[]} values */
function inner(values) {
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const out = Math.ceil(OUTER * sorted.length);
  return { sorted, low: sorted[out], high: sorted[sorted.length - 1 - out] };
}

/**
 * Return a range that neither a few outliers nor a few runs decide.
 *
 * @param {number[][]} curves
 * @param {boolean} [judged] whether a run can be far: of a metric without a goal, such as a rate, none is worse than
 *   others
 * @returns {{range: [number, number], outside: number, above: number[], below: number[]} | null} null if nothing is far
 *   from
 *   the rest; `above` and `below`: the numbers of the curves that are; `outside`: how many points of the others
 */
export function robust(curves, judged = true) {
  const ranges = curves.map(inner);
  const middle = (/** @type {number[]} */ values, { sorted } = inner(values)) => sorted[sorted.length >> 1];
  const usual = { low: middle(ranges.map(({ low }) => low)), high: middle(ranges.map(({ high }) => high)) };
  const reach = FAR_RUN * (usual.high - usual.low);
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
