/** The groups of a comparison: their means, how far their runs are apart, and deltas to the first group. */

import { h, scrollable } from "../dom.js";
import * as f from "../format.js";

/**
 * @param {import("../types.js").RunGroupView[]} groups the first is the baseline
 * @param {string} metric
 * @param {string} where
 * @param {(group: string) => import("../dom.js").Child} swatch
 */
export function groupTable(groups, metric, where, swatch) {
  const column = (/** @type {string} */ text, /** @type {string} */ hint) =>
    h("th.num", { scope: "col", title: hint }, text);
  const heads = [
    h("th", {}, ""),
    h("th", { scope: "col" }, "group"),
    column("runs", "of which so many have a value"),
    column(`${metric} at ${where}`, "mean of the runs, ± their standard deviation"),
    column("to the first group", "difference of the means"),
  ];
  const rows = groups.map(({ name, run_ids: ids, count, mean, deviation }) =>
    h(
      "tr",
      { key: name },
      h("td.shrink", {}, swatch(name)),
      h("td", {}, h("b", {}, name)),
      h("td.num", {}, count === ids.length ? f.integer(count) : `${count} of ${ids.length}`),
      h("td.num", {}, f.metric(metric, mean), deviation !== null && h(
        "span.dim", {}, ` ± ${f.metric(metric, deviation)}`,
      )),
      h("td.num", {}, name !== groups[0].name && f.change(mean, groups[0].mean, metric)),
    ),
  );
  return scrollable(h("table", { "aria-label": "Groups" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows)));
}
