/** One run in the table of a comparison. */

import { get } from "../api.js";
import { h } from "../dom.js";
import * as f from "../format.js";
import { acts } from "../roles.js";
import { repeat } from "../seeds.js";
import { runState } from "../status.js";
import { besideBaseline, notable } from "./delta.js";

/**
 * @typedef {import("../types.js").RunResultView} RunResultView
 *
 * @typedef {object} Shown what the row shows besides the run
 * @property {RunResultView | undefined} result
 * @property {RunResultView | null | undefined} base the baseline's result; null for the baseline itself
 * @property {string} metric
 * @property {typeof import("./differences.js").BESIDES[number][]} besides further columns
 * @property {any} swatch
 * @property {string} factors the settings in which it differs
 * @property {import("../types.js").MetricInfo | undefined} info
 * @property {unknown} best
 * @property {() => void} onBaseline
 * @property {(() => void) | null} onTakeOut null where too few would be left
 */

/** @param {import("../types.js").RunView} run @param {Shown} shown */
export function resultRow(run, shown) {
  const { result, base, metric, info } = shown;
  const isBase = base === null;
  const button = (/** @type {string} */ label, /** @type {string} */ text, /** @type {() => void} */ onclick) =>
    h("button.quiet", { type: "button", "aria-label": label, onclick }, text);
  const seeds = acts({
    type: "button", "aria-label": `Repeat ${run.name} with other seeds`,
    onclick: async () => repeat(await get(`/runs/${run.id}`)),
  });
  const name = h("a.name", { href: `/runs/${run.id}` }, run.name);
  return h(
    "tr",
    { "data-run": run.id },
    h("td.shrink", {}, shown.swatch),
    h("td", {}, name, isBase && h("span.tag", {}, "baseline"), h("span.dim", {}, ` ${shown.factors}`)),
    h(
      "td.row-actions",
      {},
      !run.archived && !run.forked_from && h("button.quiet", seeds, "Seeds"),
      !isBase && button(`Make ${run.name} the baseline`, "Baseline", shown.onBaseline),
      shown.onTakeOut && button(`Take ${run.name} out`, "×", shown.onTakeOut),
    ),
    h("td", {}, runState(run)),
    h("td.num", {}, h("b", {}, f.metric(metric, result?.value))),
    h("td.num", {}, !isBase && besideBaseline(result, base, metric)),
    h("td.num", { title: info ? `at step ${f.integer(info.last_step)}` : null }, f.metric(metric, info?.last)),
    h("td.num", {}, f.metric(metric, shown.best)),
    shown.besides.map(([field, , , unit]) => h(
      "td.num", {}, f.metric(unit, result?.[field]).replace(" tok/s", ""),
      !isBase && notable(result?.[field], base?.[field]),
    )),
  );
}
