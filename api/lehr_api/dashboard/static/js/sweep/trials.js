/** The table of a sweep's trials, best first. */

import { sparkline } from "../charts/drawing.js";
import { dataTable, h } from "../dom.js";
import { acts, order } from "../form.js";
import * as f from "../format.js";
import { tryTo } from "../notices.js";
import { shortName } from "../runs/configs.js";
import { runReason, runState } from "../status.js";
/** @import { SweepDetail, TrialView } from "../types.js" */

/**
 * Return the trials, best first: ranked, then not ranked yet, then ended without a rank.
 *
 * @param {import("../types.js").TrialView[]} trials
 */
export function inOrder(trials) {
  const late = (/** @type {import("../types.js").TrialView} */ trial) => (
    trial.rank !== null ? 0 : ["failed", "cancelled", "pruned"].includes(trial.run.state) ? 2 : 1
  );
  return [...trials].sort((a, b) => late(a) - late(b) || (a.rank ?? 0) - (b.rank ?? 0) || a.number - b.number);
}

const retry = (/** @type {TrialView} */ { run }) => tryTo(
  () => order(`/runs/${run.id}/retry`, `${run.name} is queued again.`),
);

/**
 * @param {SweepDetail} sweep
 * @param {(trial: TrialView) => HTMLElement} mark
 */
export function trialsTable(sweep, mark) {
  const head = (/** @type {string} */ title, hint = "") => h("th.num", { scope: "col", title: hint }, title);
  // Of trials that have all ended, it is the compared value once more.
  const newest = sweep.trials.some(({ value, compared_value: compared }) => value !== compared);
  const heads = [
    "", head("rank"), "run",
    head(sweep.metric, sweep.compared_at_step
      ? `at step ${f.integer(sweep.compared_at_step)}, where trials are compared`
      : ""),
    ...sweep.parameters.map((path) => head(shortName(path, sweep.parameters), path)),
    "state", ...(newest ? [head("newest", "its newest value and step")] : []), "trend", head("tok/s"),
  ];
  const rows = inOrder([...sweep.trials, ...sweep.repetitions]).map((trial, i, { [i - 1]: above }) => {
    const { id, name } = trial.run;
    const reason = runReason(trial.run);
    const point = sweep.points.find(({ run_ids: ids }) => ids.length > 1 && ids.includes(id));
    return h(
      trial.best ? "tr.best" : "tr",
      { "data-run": id },
      h("td.shrink", {}, mark(trial)),
      // The seeds of a point have one rank.
      h("td.num", {}, !(point && above?.rank === trial.rank) && [trial.rank ?? f.NONE, point && h(
        "span.dim.mean", { title: `the mean of its ${point.run_ids.length} seeds, which has the rank` },
        ` mean ${f.number(point.mean)}`,
      )]),
      h("td", {}, h("a.name", { href: `/runs/${id}` }, name)),
      h("td.num", {}, h("b", {}, f.number(trial.compared_value)), trial.best && " best"),
      sweep.parameters.map((path) => h(
        "td.num", { title: String(trial.parameters[path]) }, f.specValue(trial.parameters[path], path),
      )),
      h(
        "td", {}, runState(trial.run),
        trial.run.state === "failed" && h("button.again", acts({
          type: "button", "aria-label": "Run again", onclick: () => retry(trial),
        }), "↻", h("span.word", {}, " Run again")),
        reason && h("span.reason", { title: reason }, reason),
      ),
      newest && h("td.num", {}, f.number(trial.value), trial.step !== null && h(
        "span.dim", {}, ` @ ${f.integer(trial.step)}`,
      )),
      h("td", {}, sparkline(trial.run.trend, `train/loss of ${name}`) ?? f.NONE),
      h("td.num", {}, f.si(trial.run.latest.tokens_per_s?.value)),
    );
  });
  return dataTable("Trials", heads, rows, { kind: ".trials" });
}
