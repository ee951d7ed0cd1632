/** What the page of runs shows before there is a run. */

import { h } from "../dom.js";
import { empty } from "../notices.js";

export function welcome() {
  return empty(
    "No runs yet",
    h("p", {}, "Eight learning rates of a small model, on any machine and in some minutes:"),
    h("pre", {}, "lehr demo"),
    h("p", {}, "Or submit a spec of your own, as a run or a sweep:"),
    h("pre", {}, "lehr submit my-run.yaml\nlehr sweep sweeps/lr_grid_small.yaml"),
    h("p", {}, "They appear here at once."),
  );
}
