/** The list of rollouts with their progress, newest first. */

import { h } from "../dom.js";
import * as f from "../format.js";
import { groupList } from "../grouplist.js";
import { empty } from "../notices.js";
import { stateMark } from "../status.js";

/** @typedef {import("../types.js").RolloutView} RolloutView */

/** @param {RolloutView} rollout */
function stages(rollout) {
  return h("ol.progress-stages.plain", {}, Object.entries(rollout.progress).map(([name, state]) => h(
    "li", { title: `${name}: ${state}` },
    stateMark(state, name.replaceAll("_", " ").replace(
      /\b(gpus?|cpu)\b/g, (word) => word.toUpperCase().replace("GPUS", "GPUs"),
    )),
    h("span.unseen", {}, ` ${state}`),
  )));
}

/** @param {RolloutView} rollout */
const cells = (rollout) => [
  h("td", {}, h("a.name", { href: `/rollouts/${rollout.id}` }, rollout.name)),
  h("td", {}, stateMark(rollout.state)),
  h("td", {}, stages(rollout)),
  h("td.grow.dim", { title: rollout.reason }, rollout.reason),
  h("td", {}, rollout.project),
  h("td", {}, f.time(rollout.created_at)),
];

groupList({
  noun: "rollout",
  heads: ["name", "state", "stages", "reason", "project", "submitted"],
  cells,
  none: () =>
    empty(
      "No rollouts yet",
      h(
        "p", {},
        "A rollout takes one run to all its GPUs in four stages: on the CPU, on one GPU, on two, on all. Each stage must pass its gates, so a bug is found in the cheapest stage:",
      ),
      h("pre", {}, "lehr rollout sweeps/rollout_small.yaml"),
    ),
});
