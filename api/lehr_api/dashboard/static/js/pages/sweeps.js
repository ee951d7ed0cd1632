/** The list of sweeps, newest first. */

import { h } from "../dom.js";
import * as f from "../format.js";
import { groupList } from "../grouplist.js";
import { empty } from "../notices.js";
import { countsLine } from "../status.js";

/** @typedef {import("../types.js").SweepView} SweepView */

/** @param {SweepView} sweep */
function best(sweep) {
  if (sweep.held_out === "different") return h("span.dim", { title: sweep.held_out_note }, "different held-out sets");
  if (!sweep.best_parameters) return h("span.dim", {}, f.NONE);
  return [h("b", {}, f.metric(sweep.metric, sweep.best_value)), h("span.dim", {}, f.atPoint(sweep.best_parameters))];
}

/** @param {SweepView} sweep */
function cells(sweep) {
  const size = Object.values(sweep.counts).reduce((a, b) => a + b, 0);
  return [
    h("td", {}, h("a.name", { href: `/sweeps/${sweep.id}` }, sweep.name)),
    h("td", {}, countsLine(sweep.counts)),
    h("td.num", {}, f.integer(size)),
    h("td", {}, best(sweep)),
    h("td.dim", {}, sweep.parameters.join(" × ")),
    h("td", {}, sweep.project),
    h("td", {}, f.time(sweep.created_at)),
  ];
}

groupList({
  noun: "sweep",
  heads: ["name", "runs", ".num trials", "best", "over", "project", "submitted"],
  cells,
  none: () =>
    empty(
      "No sweeps yet",
      h("p", {}, "A sweep runs one spec at many values. Eight learning rates of a small model, on any machine:"),
      h("pre", {}, "lehr demo"), h("p", {}, "The same as a file that you can change:"),
      h("pre", {}, "lehr sweep sweeps/lr_grid_small.yaml"),
    ),
});
