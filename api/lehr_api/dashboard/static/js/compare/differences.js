/** What a comparison shows beside the compared metric: speed and memory, and differences of the configs. */

import { h, scrollable } from "../dom.js";
import * as f from "../format.js";
import { shortName } from "../runs/configs.js";

/** By how many factors a run is described. */
export const FACTORS = 4;

/** Further columns of the table: [field of a standing, title, explanation, metric that formats it]. */
export const BESIDES = /** @type {const} */ ([
  ["tokens_per_s", "median tok/s", "over the run", "tokens_per_s"],
  ["mfu", "MFU", "median over the run, of the GPUs' dense peak", "mfu"],
  ["step_time_s", "median step", "time of a step over the run", "step_time_s"],
  ["memory_bytes", "memory", "highest of one GPU; on a CPU, of the process", "memory/peak_bytes"],
]);

/**
 * @param {string[]} ids
 * @param {{path: string, values: any[], factor: boolean}[]} shown
 * @param {(id: string) => import("../dom.js").Child} head
 */
export const differencesTable = (ids, shown, head) =>
  scrollable(
    h(
      "table.config",
      { "aria-label": "Config differences" },
      h("thead", {}, h(
        "tr", {}, h("th", { scope: "col" }, "field"), ids.map((id) => h("th", { scope: "col" }, head(id))),
      )),
      h("tbody", {}, shown.map((one) => h(
        one.factor ? "tr.differs" : "tr", {}, h("td.key.shrink", {}, one.path),
        one.values.map((value) => h("td.value", {}, f.specCell(value, one.path))),
      ))),
    ),
  );

/**
 * Describe a run by the factors in which it differs from the others.
 *
 * @param {import("../types.js").ComparisonView | null} comparison
 * @param {string} id
 */
export function factorsOf(comparison, id) {
  const column = comparison?.runs.indexOf(id) ?? -1;
  if (!comparison || column < 0) return "";
  const shown = comparison.differences.filter((one) => one.factor || f.isSeed(one.path)).slice(0, FACTORS);
  const all = shown.map((one) => one.path);
  return shown.map((one) => `${shortName(one.path, all)} ${f.specValue(one.values[column], one.path)}`).join(" · ");
}
