/** The actions on a sweep: cancel, retry failed trials, extend. */

import { post } from "../api.js";
import { h, input } from "../dom.js";
import { acts, field, openForm } from "../form.js";
import * as f from "../format.js";
import { confirmed, toast, tryTo } from "../notices.js";
import { gpuHours } from "../run/fork.js";
import { ENDED } from "../status.js";
import { inOrder } from "./trials.js";

/** @typedef {import("../types.js").SweepDetail} SweepDetail */

/** How many of the best trials the comparison begins with. */
const COMPARED = 20;

/** How many of its runs have not ended. @param {SweepDetail} sweep */
const living = (sweep) => Object.entries(sweep.counts).reduce((sum, [state, n]) => sum + (ENDED.has(state) ? 0 : n), 0);

/** @param {SweepDetail} sweep */
async function cancel(sweep) {
  const live = living(sweep);
  const yes = await confirmed({
    title: `Cancel ${sweep.name}?`,
    body: h("p", {}, `${live} of its ${sweep.trials_total} runs have not ended; they are stopped without saving.`),
    yes: "Cancel the sweep",
    danger: true,
  });
  if (!yes) return;
  await tryTo(async () => {
    await post(`/sweeps/${sweep.id}/cancel`);
    toast("Cancelling.");
  });
}

/** @param {SweepDetail} sweep */
async function retry(sweep) {
  await tryTo(async () => {
    await post(`/sweeps/${sweep.id}/retry`);
    toast("The failed trials are queued again.");
  });
}

/** Parse a value as a spec does: a number if it is one. @param {string} text */
const value = (text) => (
  text !== "" && Number.isFinite(Number(text)) ? Number(text) : text === "true" ? true : text === "false" ? false : text
);

/** @param {SweepDetail} sweep */
function extend(sweep) {
  const about = "Existing trials do not change. New ones are queued.";
  if (sweep.method === "grid") {
    const path = /** @type {HTMLSelectElement} */ (h(
      "select", {}, sweep.parameters.map((one) => h("option", { value: one }, one)),
    ));
    const values = input({ required: true, placeholder: "2e-2, 5e-2" });
    openForm({
      title: `Add values to ${sweep.name}`,
      about,
      fields: [field("parameter", path), field("values", values, "with commas between them")],
      yes: "Add",
      act: () => post(`/sweeps/${sweep.id}/extend`, {
        parameters: { [path.value]: values.value.split(",").map((one) => value(one.trim())) }
      }),
    });
    return;
  }
  const what = sweep.method === "campaign" ? "gpu_hours" : "trials";
  const trials = input({ type: "number", min: "1", max: "10000", value: "8", required: true });
  openForm({
    title: `Add ${what.replace("gpu_h", "GPU-h")} to ${sweep.name}`,
    about,
    fields: [field(what.replace("gpu_h", "GPU-h"), trials)],
    yes: "Add",
    act: () => post(`/sweeps/${sweep.id}/extend`, { [what]: Number(trials.value) }),
  });
}

/**
 * Add the trials that the verdict names.
 *
 * @param {SweepDetail} sweep
 * @param {NonNullable<SweepDetail["next_trials"]>} next
 */
async function extendAsAdvised(sweep, next) {
  const seeds = Object.keys(next.parameters ?? {}).some(f.isSeed);
  const added = next.parameters ? Object.values(next.parameters)
    .flat() : (next.points ?? []).flatMap((point) => Object.values(point));
  const done = sweep.counts.completed ?? 0;
  // The hours of trials that ended early do not predict those of a whole one.
  const hours = sweep.cost && done && done === sweep.trials_total ? (next.trials * sweep.cost.gpu_hours) / done : null;
  const yes = await confirmed({
    title: `Add ${next.trials} ${next.trials === 1 ? "trial" : "trials"} to ${sweep.name}?`,
    body: h(
      "div",
      {},
      h(
        "p", {},
        `${seeds ? "Seeds" : "Learning rates"} ${added.map((one) => (seeds ? String(one) : f.scientific(one))).join(", ")}. Existing trials do not change.`,
      ),
      h("p", {}, gpuHours(hours)),
    ),
    yes: "Add the trials",
  });
  if (!yes) return;
  await tryTo(async () => {
    const { parameters, points } = next;
    await post(`/sweeps/${sweep.id}/extend`, parameters ? { parameters } : { points });
    toast("The trials are queued.");
  });
}

/** @param {SweepDetail} sweep */
export function sweepActions(sweep) {
  const live = living(sweep) > 0;
  const failed = (sweep.counts.failed ?? 0) > 0;
  const compared = inOrder(sweep.trials).slice(0, COMPARED).map((trial) => trial.run.id);
  const some = compared.length < sweep.trials_total;
  return h(
    "div.actions",
    {},
    compared.length > 1 && h(
      "a.button", { href: `/compare?runs=${compared.join(",")}` },
      some ? `Compare the best ${compared.length}` : "Compare",
    ),
    h("a.button", { href: `/api/v1/reports/${sweep.id}`, target: "_blank", rel: "noopener" }, "Report"),
    sweep.method !== "list" && h(
      "button", acts({ type: "button", onclick: () => extend(sweep) }),
      sweep.method === "grid" ? "Add values" : sweep.method === "campaign" ? "Add GPU-hours" : "Add trials",
    ),
    sweep.next_trials && !live && h(
      "button.main",
      acts({ type: "button", onclick: () => sweep.next_trials && extendAsAdvised(sweep, sweep.next_trials) }),
      `Add ${sweep.next_trials.trials} proposed ${sweep.next_trials.trials === 1 ? "trial" : "trials"}`,
    ),
    failed && h("button", acts({ type: "button", onclick: () => retry(sweep) }), "Run failed again"),
    live && h("button.danger", acts({ type: "button", onclick: () => cancel(sweep) }), "Cancel"),
  );
}
