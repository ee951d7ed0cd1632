/** Groups of runs: by a path of the config, by tag, by project. */

/**
 * @typedef {object} Grouping
 * @property {string} by paths of the config, "tag", "project", or "tag:" and one tag, with commas between them
 * @property {(run: string, path: string) => any} value the run's value of a path; undefined if it is not known
 * @property {(value: any, path: string) => string} text of a value
 */

/**
 * Return the name of a run's group.
 *
 * @param {{id: string, tags: string[], project: string}} run
 * @param {Grouping} grouping
 * @returns {string}
 */
export const groupOf = (run, { by, value, text }) => keysOf(by).map((key) => partOf(run, key, value, text)).join(" · ");

/** The keys of a group. @param {string} by */
export const keysOf = (by) => by.split(",").map((key) => key.trim()).filter(Boolean);

/**
 * @param {{id: string, tags: string[], project: string}} run
 * @param {string} by one key
 * @param {Grouping["value"]} value
 * @param {Grouping["text"]} text
 */
function partOf(run, by, value, text) {
  if (by === "tag") return run.tags.length ? [...run.tags].sort().join(", ") : "no tag";
  if (by.startsWith("tag:")) return `${run.tags.includes(by.slice(4)) ? "" : "not "}${by.slice(4)}`;
  if (by === "project") return run.project;
  const found = value(run.id, by);
  const name = by.split(".").at(-1) ?? by;
  return found === undefined || found === null ? `no ${name}` : `${name} ${text(found, by)}`;
}

/**
 * Return the mean and the sample standard deviation of those values that are numbers.
 *
 * @param {(number | null)[]} values
 * @returns {{n: number, mean: number | null, deviation: number | null}} no deviation of a single value
 */
export function spreadOf(values) {
  const known = /** @type {number[]} */ (values.filter((one) => one !== null && Number.isFinite(one)));
  const n = known.length;
  if (!n) return { n, mean: null, deviation: null };
  const mean = known.reduce((a, b) => a + b, 0) / n;
  return { n, mean, deviation: n < 2 ? null : Math.sqrt(known.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (n - 1)) };
}

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
  const found = new Map();
  for (const run of runs) found.set(key(run), [...(found.get(key(run)) ?? []), run]);
  return found;
}
