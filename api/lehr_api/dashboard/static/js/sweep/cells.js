/** The cells of a sweep as a table: the best first. */

import { post } from "../api.js";
import { h, scrollable } from "../dom.js";
import * as f from "../format.js";
import { toast, tryTo } from "../notices.js";
import { sparkline } from "../spark.js";
import { runReason, runState } from "../status.js";
import { inOrder } from "./order.js";

/**
 * @typedef {import("../types.js").SweepDetail} SweepDetail
 * @typedef {import("../types.js").CellView} CellView
 */

/** @param {CellView} cell */
async function retry(cell) {
  await tryTo(async () => {
    await post(`/runs/${cell.run.id}/retry`);
    toast(`${cell.run.name} is queued again.`);
  });
}

/**
 * @param {SweepDetail} sweep
 * @param {(run: string) => HTMLElement | null} swatch the colour that the run has in the curves
 */
export function cellsTable(sweep, swatch) {
  const head = (/** @type {string} */ title, num = false, hint = "") => h(num ? "th.num" : "th", { scope: "col", title: hint }, title);
  return scrollable(
    h(
      "table.cells",
      { "aria-label": "Cells" },
      h(
        "thead",
        {},
        h("tr", {}, head("", false), head("rank", true), sweep.parameters.map((path) => head(path, true)), head(sweep.metric, true, sweep.compared_at_step ? `at step ${f.integer(sweep.compared_at_step)}, where cells are compared` : ""), head("newest", true, "its newest value and the step of it"), head("trend"), head("tok/s", true), head("state"), head("run"), head("")),
      ),
      h(
        "tbody",
        {},
        inOrder(sweep.cells).map((cell) => {
          const reason = runReason(cell.run);
          return h(
            cell.best ? "tr.best" : "tr",
            { "data-run": cell.run.id },
            h("td.shrink", {}, swatch(cell.run.id)),
            h("td.num", {}, cell.rank ?? f.NONE),
            sweep.parameters.map((path) => h("td.num", {}, f.specValue(cell.parameters[path], path))),
            h("td.num", {}, h("b", {}, f.number(cell.compared_value)), cell.best && " best"),
            h("td.num", {}, f.number(cell.value), cell.step !== null && h("span.dim", {}, ` @ ${f.integer(cell.step)}`)),
            h("td", {}, sparkline(cell.run.trend, `train/loss of ${cell.run.name}`) ?? f.NONE),
            h("td.num", {}, f.si(cell.run.latest.tokens_per_s?.value)),
            h("td.col-state", {}, runState(cell.run), reason && h("span.reason", { title: reason }, reason)),
            h("td", {}, h("a.name", { href: `/runs/${cell.run.id}` }, cell.run.name)),
            h("td", {}, cell.run.state === "failed" && h("button", { type: "button", onclick: () => retry(cell) }, "Run again")),
          );
        }),
      ),
    ),
  );
}
