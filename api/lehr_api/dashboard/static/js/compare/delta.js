/** The difference of a value from the baseline, beside the value. */

import { h } from "../dom.js";
import * as f from "../format.js";

/**
 * @param {unknown} value
 * @param {unknown} base
 * @param {((v: unknown) => string) | null} format null for the share alone
 */
export function delta(value, base, format) {
  const text = f.change(value, base, format);
  return text === null ? null : h("span.delta", {}, text);
}

/**
 * @param {import("../types.js").RunResultView | undefined} standing
 * @param {import("../types.js").RunResultView | undefined} base
 * @param {(v: unknown) => string} format
 */
export function besideBaseline(standing, base, format) {
  if (standing?.incomparable) return h("span.delta.incomparable", {}, standing.incomparable);
  return delta(standing?.value, base?.value, format);
}
