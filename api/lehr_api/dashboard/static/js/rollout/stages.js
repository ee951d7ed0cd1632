/** The stages of a rollout: an overview, and each stage with its runs and gates. */

import { h } from "../dom.js";
import * as f from "../format.js";
import { sparkline } from "../spark.js";
import { progress, runReason, runState, stateMark } from "../status.js";
import { gatesLine, gatesTable } from "./gates.js";

/**
 * @typedef {import("../types.js").RolloutDetail} RolloutDetail
 * @typedef {import("../types.js").StageView} StageView
 * @typedef {import("../types.js").RunView} RunView
 */

/** @type {Record<string, string>} */
const ROLES = {
  train: "the stage's run",
  whole: "uninterrupted, for the comparison",
  resumed: "resumed from a checkpoint",
};

/** @param {StageView} stage */
export function place(stage) {
  if (!stage.gpus) return "CPU";
  const each = `${stage.gpus} × ${stage.gpu_type ?? "GPU"}`;
  return stage.nodes > 1 ? `${each} on each of ${stage.nodes} nodes` : each;
}

/**
 * Draw the overview; each stage links to its section of the page.
 *
 * @param {RolloutDetail} rollout
 * @param {(name: string) => void} open
 */
export function stagesLine(rollout, open) {
  return h(
    "ol.stages.plain",
    { "aria-label": "Stages" },
    rollout.stages.map((stage) =>
      h(
        `li.stage-${stage.state}`,
        { "aria-current": stage.name === rollout.stage ? "step" : null },
        h("a", { href: `#stage-${stage.name}`, onclick: () => open(stage.name) }, h(
          "b", {}, `${stage.number}. ${stage.title}`,
        )),
        stateMark(stage.state),
        h("span.dim", {}, gatesLine(stage)),
      ),
    ),
  );
}

/** @param {RunView} run @param {string} role */
function runLine(run, role) {
  const reason = runReason(run);
  const share = progress(run);
  return h(
    "li",
    { "data-run": run.id },
    h("a.name", { href: `/runs/${run.id}` }, run.name),
    h("span.dim", {}, ROLES[role]),
    runState(run),
    h("span", {}, run.step === null ? "no step yet" : `step ${f.integer(run.step)}${f.ofTotal(run.total_steps)}`),
    share !== null
      && run.latest["train/loss"]
      && h("span", {}, "train/loss ", h("b", {}, f.number(run.latest["train/loss"].value))),
    sparkline(run.trend, `train/loss of ${run.name}`),
    reason && h("span.reason", { title: reason }, reason),
  );
}

/** @param {StageView} stage */
function facts(stage) {
  const took = stage.started_at !== null && stage.ended_at !== null
    ? f.duration(stage.ended_at - stage.started_at)
    : null;
  return h(
    "div.status-line",
    {},
    h("span", {}, place(stage)),
    h("span", {}, stage.model),
    h("span", {}, `${f.integer(stage.steps)} steps of ${f.integer(stage.tokens_per_step)} tokens`),
    h("span", {}, `judged at step ${f.integer(stage.judged_at_step)}`),
    took && h("span", {}, `took ${took}`),
    stage.cost && stage.gpus > 0 && h("span.cost", { title: f.COST }, f.cost(stage.cost)),
  );
}

/** @param {StageView} stage */
function changes(stage) {
  const paths = Object.entries(stage.changes);
  if (!paths.length) return h("p.hint", {}, "It runs the rollout's run unchanged.");
  return h(
    "details.changes",
    {},
    h(
      "summary", {}, `${paths.length} ${paths.length === 1 ? "value differs" : "values differ"} from the rollout's run`,
    ),
    h("dl.facts", {}, paths.map(([path, value]) => [h("dt.mono", {}, path), h("dd", {}, f.specCell(value, path))])),
  );
}

/**
 * @param {StageView} stage
 * @param {boolean} open
 * @param {(open: boolean) => void} onToggle called when the user toggles a stage
 */
export function stagePart(stage, open, onToggle) {
  const toggled = (/** @type {Event} */ event) => {
    const part = /** @type {HTMLDetailsElement} */ (/** @type {HTMLElement} */ (event.currentTarget).parentElement);
    onToggle(!part.open);
  };
  return (
    h(
      "details.stage-part",
      { id: `stage-${stage.name}`, open },
      h("summary", { onclick: toggled }, h("h2", {}, `${stage.number}. ${stage.title}`), stateMark(stage.state), h(
        "span.dim", {}, gatesLine(stage),
      )),
      // Its row and the verdict above already show why a gate failed.
      stage.reason
        && !stage.gates.some((gate) => gate.state === "failed")
        && h(stage.state === "failed" ? "div.failure" : "p.note", {}, stage.reason),
      facts(stage),
      changes(stage),
      h("ul.stage-runs.plain", {}, stage.runs.length ? stage.runs.map(({ role, run }) => runLine(run, role)) : h(
        "li.dim", {},
        stage.state === "skipped"
          ? "Nothing was started."
          : "Its run is submitted when the previous stages have passed.",
      )),
      gatesTable(stage),
    )
  );
}
