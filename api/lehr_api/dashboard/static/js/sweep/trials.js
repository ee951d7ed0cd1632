/** The table of a sweep's trials, best first. */

import { acts } from "../roles.js";
import { post } from "../api.js";
import { h, scrollable } from "../dom.js";
import * as f from "../format.js";
import { toast, tryTo } from "../notices.js";
import { sparkline } from "../spark.js";
import { runReason, runState } from "../status.js";
import { inOrder } from "./order.js";

/**
 * @typedef {import("../types.js").SweepDetail} SweepDetail
 * @typedef {import("../types.js").TrialView} TrialView
 */

/** @param {TrialView} trial */
async function retry(trial) {
  await tryTo(async () => {
    await post(`/runs/${trial.run.id}/retry`);
    toast(`${trial.run.name} is queued again.`);
  });
}

/**
 * @param {SweepDetail} sweep
 * @param {(run: string) => HTMLElement | null} swatch returns the mark with the run's colour
 */
export function trialsTable(sweep, swatch) {
  const head = (/** @type {string} */ title, num = false, hint = "") =>
    h(num ? "th.num" : "th", { scope: "col", title: hint }, title);
  return scrollable(
    h(
      "table.trials",
      { "aria-label": "Trials" },
      h(
        "thead",
        {},
        h(
          "tr", {}, head("", false), head("rank", true), sweep.parameters.map((path) => head(path, true)),
          head(
            sweep.metric, true,
            sweep.compared_at_step ? `at step ${f.integer(sweep.compared_at_step)}, where trials are compared` : "",
          ),
          head("newest", true, "its newest value and step"), head("trend"), head("tok/s", true), head("state"),
          head("run"), head(""),
        ),
      ),
      h(
        "tbody",
        {},
        inOrder([...sweep.trials, ...sweep.repetitions]).map((trial) => {
          const reason = runReason(trial.run);
          const point = sweep.points.find(({ run_ids: ids }) => ids.length > 1 && ids.includes(trial.run.id));
          return h(
            trial.best ? "tr.best" : "tr",
            { "data-run": trial.run.id },
            h("td.shrink", {}, swatch(trial.run.id)),
            h("td.num", {}, trial.rank ?? f.NONE, trial.rank !== null && point && h(
              "span.dim", { title: `the mean of its ${point.run_ids.length} seeds, which has the rank` },
              ` mean ${f.number(point.mean)}`,
            )),
            sweep.parameters.map((path) => h("td.num", {}, f.specCell(trial.parameters[path], path))),
            h("td.num", {}, h("b", {}, f.number(trial.compared_value)), trial.best && " best"),
            h("td.num", {}, f.number(trial.value), trial.step !== null && h(
              "span.dim", {}, ` @ ${f.integer(trial.step)}`,
            )),
            h("td", {}, sparkline(trial.run.trend, `train/loss of ${trial.run.name}`) ?? f.NONE),
            h("td.num", {}, f.si(trial.run.latest.tokens_per_s?.value)),
            h("td.col-state", {}, runState(trial.run), reason && h("span.reason", { title: reason }, reason)),
            h("td", {}, h("a.name", { href: `/runs/${trial.run.id}` }, trial.run.name)),
            h("td", {}, trial.run.state === "failed" && h(
              "button", acts({ type: "button", onclick: () => retry(trial) }), "Run again",
            )),
          );
        }),
      ),
    ),
  );
}
