/** The difference of a value from the baseline, beside the value. */

import { h } from "../dom.js";
import * as f from "../format.js";

/** @param {string | null} text */
const delta = (text) => (text === null ? null : h("span.delta", {}, text));

/** A smaller share of a speed or of the memory is not worth its room. */
const NOTABLE = 0.01;

/**
 * The difference of a speed or of the memory as a share, unless it is less than 1 %.
 *
 * @param {unknown} value
 * @param {unknown} base
 */
export function notable(value, base) {
  const [one, other] = [value, base].map((v) => (typeof v === "number" ? v : NaN));
  return Math.abs(one / other - 1) >= NOTABLE ? delta(f.change(value, base, null)) : null;
}

/**
 * @param {import("../types.js").RunResultView | undefined} standing
 * @param {import("../types.js").RunResultView | undefined} base
 * @param {string} metric
 */
export function besideBaseline(standing, base, metric) {
  if (standing?.incomparable) return h("span.delta.incomparable", {}, standing.incomparable);
  return delta(f.change(standing?.value, base?.value, metric));
}
