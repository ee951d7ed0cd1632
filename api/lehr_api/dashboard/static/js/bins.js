/** Groups of runs by the value of a metric: its exact values if they are few and whole, else equal parts. */

/** The most values, all of them whole numbers, for which a metric has a group for each. */
const FEW = 8;
/** From this number of runs on there are four parts, below it two. */
const QUARTERED = 8;
const DIGITS = 17;

/** @param {number} value */
function plain(value) {
  const rounded = Number(value.toPrecision(12));
  const ordinary = rounded === 0 || (Math.abs(rounded) >= 1e-4 && Math.abs(rounded) < 1e12);
  return ordinary ? String(rounded) : rounded.toExponential().replace("e+", "e");
}

/**
 * Return the shortest number that is more than `low` and at most `high`.
 *
 * @param {number} low
 * @param {number} high
 */
function between(low, high) {
  const middle = low + (high - low) / 2;
  for (let digits = 1; digits <= DIGITS; digits += 1) {
    const found = Number(middle.toPrecision(digits));
    if (found > low && found <= high) return found;
  }
  return high;
}

/**
 * Return where the parts begin, except the first: each part has about equally many of the values.
 *
 * @param {number[]} values
 * @returns {number[] | null} null if each value is a group of its own
 */
export function edgesOf(values) {
  const finite = values.filter(Number.isFinite).sort((a, b) => a - b);
  if (new Set(finite).size <= FEW && finite.every(Number.isInteger)) return null;
  const parts = finite.length >= QUARTERED ? 4 : 2;
  /** @type {number[]} */
  const edges = [];
  for (let part = 1; part < parts; part += 1) {
    // Equal values are in one part.
    const at = finite.indexOf(finite[Math.floor((part * finite.length) / parts)]);
    if (at < 1) continue;
    const edge = between(finite[at - 1], finite[at]);
    if (!edges.includes(edge)) edges.push(edge);
  }
  return edges;
}

/**
 * Name the group of a value: "val/loss 1.8 to 2".
 *
 * @param {string} name of the metric
 * @param {number | null} value
 * @param {number[] | null} edges as `edgesOf` returns them, ascending
 */
export function binOf(name, value, edges) {
  if (value === null) return `no ${name}`;
  if (!Number.isFinite(value)) return `${name} not finite`;
  if (edges === null) return `${name} ${plain(value)}`;
  const at = edges.filter((edge) => edge <= value).length;
  if (!edges.length) return name;
  if (at === 0) return `${name} below ${plain(edges[0])}`;
  if (at === edges.length) return `${name} from ${plain(edges[at - 1])}`;
  return `${name} ${plain(edges[at - 1])} to ${plain(edges[at])}`;
}

/**
 * Read a key of a grouping: a metric, or a metric with the value that divides the runs ("val/loss<2.5").
 *
 * @param {string} key
 * @returns {{metric: string, edge: number | null}}
 */
export function readKey(key) {
  const split = /^(.+?)\s*<\s*([-+\d.e]+)$/i.exec(key);
  const edge = split ? Number(split[2]) : NaN;
  return Number.isFinite(edge) && split ? { metric: split[1], edge } : { metric: key, edge: null };
}
