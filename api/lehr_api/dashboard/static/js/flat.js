/** Flatten specs into paths, for tables and diffs. */

/**
 * @param {unknown} value
 * @param {string} [path]
 * @param {Map<string, unknown>} [into]
 * @returns {Map<string, unknown>} path -> value; a list of scalars is one value
 */
export function flatten(value, path = "", into = new Map()) {
  const nested = value !== null && typeof value === "object" && !Array.isArray(value);
  if (!nested || Object.keys(/** @type {object} */ (value)).length === 0) {
    if (path) into.set(path, value);
    return into;
  }
  for (const [key, inner] of Object.entries(/** @type {object} */ (value))) {
    flatten(inner, path ? `${path}.${key}` : key, into);
  }
  return into;
}

/** @param {unknown} value */
const text = (value) => JSON.stringify(value) ?? "";

/**
 * @param {Map<string, unknown>[]} specs
 * @returns {string[]} paths whose values differ, in the order of the first spec that has them
 */
export function differing(specs) {
  const paths = new Set(specs.flatMap((spec) => [...spec.keys()]));
  return [...paths]
    .filter((path) => new Set(specs.map((spec) => (spec.has(path) ? text(spec.get(path)) : " "))).size > 1);
}
