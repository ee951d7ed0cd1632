/** The stages of a rollout: an overview, and each stage with its runs and gates. */

import { sparkline } from "../charts/drawing.js";
import { dataTable, h } from "../dom.js";
import * as f from "../format.js";
import { progress, runReason, runState, stateMark } from "../status.js";
/** @import { GateView, RolloutDetail, RunView, StageView } from "../types.js" */

/** @param {GateView} gate @param {Map<string, string>} names names of the runs by id */
function where(gate, names) {
  const run = gate.run_id && h("a", { href: `/runs/${gate.run_id}` }, names.get(gate.run_id) ?? gate.run_id);
  return [run, run && gate.step !== null && h("span.dim", {}, ` @ ${f.integer(gate.step)}`)];
}

/** @param {StageView} stage */
export function gatesTable(stage) {
  const names = new Map(stage.runs.map(({ run }) => [run.id, run.name]));
  const rows = stage.gates.map((gate) =>
    h(
      gate.state === "failed" ? "tr.stopped" : "tr",
      { "data-gate": gate.name },
      h("th.gate-name", { scope: "row" }, gate.title),
      h("td.gate-verdict", {}, stateMark(gate.state)),
      h("td.wrap", { "data-label": "expected" }, gate.expected),
      h("td.wrap", { "data-label": "seen" }, gate.seen),
      h("td.gate-where", { "data-label": "shown by" }, where(gate, names)),
    )
  );
  const heads = ["gate", "verdict", "expected", "seen", "shown by"];
  return dataTable(`Gates of ${stage.title}`, heads, rows, { kind: ".gates" });
}

/** Summarize the verdicts of a stage: "5 of 6 gates passed". @param {StageView} stage */
export function gatesLine(stage) {
  const on = stage.gates.filter((gate) => gate.state !== "off");
  if (stage.state === "skipped") return "not started";
  if (on.length && on.every((gate) => gate.state === "waiting")) return `${on.length} gates to pass`;
  const passed = on.filter((gate) => gate.state === "passed").length;
  const failed = on.filter((gate) => gate.state === "failed");
  if (failed.length) return `${failed.map((gate) => gate.title).join(", ")} failed`;
  if (!on.length) return "no gates";
  const unjudged = on.filter((gate) => gate.state === "not_judged").length;
  return `${passed} of ${on.length} gates passed${unjudged ? `, ${unjudged} not judged` : ""}`;
}

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
 * Draw the line of stages, one of which is shown below it.
 *
 * @param {RolloutDetail} rollout
 * @param {string} shown its name
 * @param {(name: string) => void} choose
 */
export function stagesLine(rollout, shown, choose) {
  return h("ol.stages.plain", { "aria-label": "Stages" }, rollout.stages.map((stage) => h(
    `li.stage-${stage.state}`, { key: stage.name, "aria-current": stage.name === rollout.stage ? "step" : null },
    h("button", {
      type: "button", "aria-expanded": String(stage.name === shown), onclick: () => choose(stage.name),
    }, stage.title),
    stateMark(stage.state), h("span.dim", {}, gatesLine(stage)),
  )));
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
    stage.cost && stage.gpus > 0 && h("span", { title: stage.cost.text }, stage.cost.text.split(/[,;]/)[0]),
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

/** @param {StageView} stage */
export const stagePart = (stage) => h(
  "section.stage-part", { id: `stage-${stage.name}`, "aria-label": stage.title },
  // Its row and the verdict above already show why a gate failed, and its run how far it is.
  stage.reason
    && !stage.gates.some((gate) => gate.state === "failed")
    && !(stage.state === "running" && stage.runs.length)
    && h(stage.state === "failed" ? "div.failure" : "p.note", {}, stage.reason),
  h("ul.stage-runs.plain", {}, stage.runs.length ? stage.runs.map(({ role, run }) => runLine(run, role)) : h(
    "li.dim", {},
    stage.state === "skipped"
      ? "Nothing was started."
      : "Its run is submitted when the previous stages have passed.",
  )),
  gatesTable(stage),
  facts(stage),
  changes(stage),
);
