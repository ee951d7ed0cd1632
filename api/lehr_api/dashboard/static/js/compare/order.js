/** The order of the runs in a comparison: by a column of the table. */

import { h } from "../dom.js";
import * as f from "../format.js";
import { write } from "../urlstate.js";
import { state } from "./state.js";

/** Three or more are ranked: of two, one sentence says all. */
export const isRanked = () => state.ids.length > 2;

/** @type {Map<string, Map<string, import("../types.js").MetricInfo>>} by run, its metrics */
export const known = new Map();

/**
 * The value of the compared metric: of last steps, or the best of all.
 *
 * @param {string} id
 * @param {"last" | "best"} which
 */
export function ofRun(id, which) {
  const info = known.get(id)?.get(state.metric);
  if (!info) return null;
  if (which === "last") return info.last;
  return state.comparison?.goal ? { minimize: info.minimum, maximize: info.maximum }[state.comparison.goal] : null;
}

/** The best value of all runs; null without any. */
export function bestOfAll() {
  const values = state.ids.flatMap((id) => f.fromWire(ofRun(id, "best")) ?? []).filter(Number.isFinite);
  return values.length ? (state.comparison?.goal === "maximize" ? Math.max : Math.min)(...values) : null;
}

/** @param {string} id @param {string} key a column, or a path of the config */
function sortValue(id, key) {
  const setting = state.comparison?.differences.find((one) => one.path === key)?.values;
  const own = setting?.[state.comparison?.runs.indexOf(id) ?? -1];
  if (setting) return typeof own === "number" ? own : setting.indexOf(own);
  const standing = state.comparison?.results.find((one) => one.run_id === id);
  const value = key === "value"
    ? standing?.value
    : key === "last" || key === "best"
    ? ofRun(id, key)
    : standing?.[/** @type {"mfu"} */ (key)];
  return f.fromWire(value ?? null);
}

/** How the table is sorted: a ranking has the best first, unless another order is chosen. */
const order = () => state.order ?? (isRanked() ? (state.comparison?.goal === "maximize" ? "-value" : "value") : null);

/** @returns {string[]} the runs in the order of the table: of two the baseline first, unless it is sorted */
export function ordered() {
  const by = order();
  const key = by?.replace("-", "");
  if (!key) return state.ids;
  const sign = by?.startsWith("-") ? -1 : 1;
  const rank = (/** @type {string} */ id) => {
    const value = sortValue(id, key);
    return value === null || Number.isNaN(value) ? Infinity : sign * value;
  };
  return [...state.ids].sort((a, b) => rank(a) - rank(b) || 0);
}

/** @type {(key: string, text: string, hint: string, onChange: () => void, under?: string) => HTMLElement} */
export function sortHead(key, text, hint, onChange, under = "") {
  const mark = order() === key ? "\u00a0↑" : order() === `-${key}` ? "\u00a0↓" : "";
  const onclick = () => {
    state.order = order() === key ? `-${key}` : state.order === `-${key}` ? null : key;
    write({ order: state.order });
    onChange();
  };
  const sorted = mark ? (mark.endsWith("↑") ? "ascending" : "descending") : null;
  const parts = (text + mark).split(/(?<=_)/).flatMap((part) => [part, h("wbr")]);
  const button = h("button.sort", { type: "button", onclick }, parts, under && h("small", {}, under));
  return h("th.num", { key, scope: "col", title: hint, "aria-sort": sorted }, button);
}
