/** The runs of a comparison in groups: means, how far their runs are apart, and deltas to the first group. */

import { h, scrollable } from "../dom.js";
import * as f from "../format.js";
import { inGroups, spreadOf } from "../groups.js";

/**
 * @typedef {object} Measured one run
 * @property {string} group
 * @property {number | null} value at equal x
 * @property {number | null} last
 * @property {number | null} best
 * @property {number | null} speed tokens per second
 */

/**
 * @param {Measured[]} runs in the order of the comparison: the group of the first is the baseline
 * @param {string} metric
 * @param {string} where
 * @param {(group: string) => import("../dom.js").Child} swatch
 */
export function groupTable(runs, metric, where, swatch) {
  const groups = [...inGroups(runs, (run) => run.group)].map(([name, members]) => ({
    name,
    members,
    value: spreadOf(members.map((one) => one.value)),
    last: spreadOf(members.map((one) => one.last)),
    best: spreadOf(members.map((one) => one.best)),
    speed: spreadOf(members.map((one) => one.speed)),
  }));
  const cell = (/** @type {{n: number, mean: number | null, deviation: number | null}} */ { mean, deviation }, /** @type {string} */ name) =>
    h("td.num", {}, f.metric(name, mean), deviation !== null && h("span.dim", {}, ` ± ${f.metric(name, deviation)}`));
  const [base] = groups;
  const column = (/** @type {string} */ text, /** @type {string} */ hint) => h("th.num", { scope: "col", title: hint }, text);
  const spread = "mean of the runs, ± their standard deviation";
  return scrollable(
    h(
      "table",
      { "aria-label": "Groups" },
      h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", { scope: "col" }, "group"), column("runs", "of which so many have a value"), column(`${metric} at ${where}`, spread), column("to the first group", "difference of the means"), column("last", spread), column("best", spread), column("median tok/s", spread))),
      h(
        "tbody",
        {},
        groups.map((one) =>
          h(
            "tr",
            { key: one.name },
            h("td.shrink", {}, swatch(one.name)),
            h("td", {}, h("b", {}, one.name)),
            h("td.num", {}, one.value.n === one.members.length ? f.integer(one.members.length) : `${one.value.n} of ${one.members.length}`),
            cell(one.value, metric),
            h("td.num", {}, one !== base && f.change(one.value.mean, base.value.mean, metric)),
            cell(one.last, metric),
            cell(one.best, metric),
            cell(one.speed, "tokens_per_s"),
          ),
        ),
      ),
    ),
  );
}
