/** The gates of a stage: expected and observed values, and the verdict. */

import { h, scrollable } from "../dom.js";
import * as f from "../format.js";
import { stateMark } from "../status.js";

/**
 * @typedef {import("../types.js").StageView} StageView
 * @typedef {import("../types.js").GateView} GateView
 */

/** @param {GateView} gate @param {Map<string, string>} names names of the runs by id */
function where(gate, names) {
  const run = gate.run_id && h("a", { href: `/runs/${gate.run_id}` }, names.get(gate.run_id) ?? gate.run_id);
  return [run, run && gate.step !== null && h("span.dim", {}, ` @ ${f.integer(gate.step)}`), !run && f.NONE];
}

/** @param {StageView} stage */
export function gatesTable(stage) {
  const names = new Map(stage.runs.map(({ run }) => [run.id, run.name]));
  return scrollable(
    h(
      "table.gates",
      { "aria-label": `Gates of ${stage.title}` },
      h("thead", {}, h(
        "tr", {}, ["gate", "verdict", "expected", "seen", "shown by"].map((title) => h("th", { scope: "col" }, title)),
      )),
      h(
        "tbody",
        {},
        stage.gates.map((gate) =>
          h(
            gate.state === "failed" ? "tr.stopped" : "tr",
            { "data-gate": gate.name },
            h("th.gate-name", { scope: "row" }, gate.title),
            h("td.gate-verdict", {}, stateMark(gate.state)),
            h("td.wrap", { "data-label": "expected" }, gate.expected),
            h("td.wrap", { "data-label": "seen" }, gate.seen ?? f.NONE),
            h(
              "td.gate-where",
              {
                "data-label": "shown by",
                title: gate.judged_at === null ? null : new Date(gate.judged_at * 1000).toISOString(),
              },
              where(gate, names),
            ),
          ),
        ),
      ),
    ),
  );
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
