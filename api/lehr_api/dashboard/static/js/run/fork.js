/** Start runs from a run: fork it from a checkpoint, or repeat it with other seeds. */

import { get, post } from "../api.js";
import { h, input } from "../dom.js";
import { field, openForm } from "../form.js";
import { bytes, integer, number, si } from "../format.js";
import { toast, tryTo } from "../notices.js";
/** @import { RunDetail } from "../types.js" */

/**
 * Describe how many GPU-hours a launch is expected to need.
 *
 * @param {number | null} hours null where no run of the kind has completed
 */
export const gpuHours = (hours) => (
  hours === null
    ? "Not all such runs have completed, so its GPU-hours are not known."
    : hours < 0.1
    ? "Under 0.1 GPU-hours, as the completed ones took."
    : `About ${si(hours)} GPU-hours, as the completed ones took.`
);

/** @param {RunDetail} run */
export function repeat(run) {
  const count = input({ type: "number", min: "1", max: "20", value: "3", required: true });
  const each = run.state === "completed" && run.cost ? run.cost.gpu_hours : null;
  const cost = h("p.hint");
  const show = () => {
    cost.textContent = gpuHours(each === null ? null : each * Number(count.value));
  };
  count.addEventListener("input", show);
  show();
  openForm({
    title: `Repeat ${run.name} with other seeds`,
    about: "The same spec, as a sweep over its seed. It shows the noise between seeds, by which comparisons are judged.",
    fields: [field("runs", count), cost],
    yes: "Queue them",
    act: async () => {
      const made = await post(`/runs/${run.id}/seeds`, { n: Number(count.value) });
      location.assign(`/sweeps/${made.id}`);
    },
  });
}

/**
 * @param {RunDetail} run
 * @param {number} [from] step of the checkpoint that the form begins with; the newest if it is not given
 */
export function fork(run, from) {
  return tryTo(async () => {
    const all = /** @type {import("../types.js").CheckpointView[]} */ (await get(`/runs/${run.id}/checkpoints`));
    const there = all.filter((one) => one.removed_at === null).sort((a, b) => b.step - a.step);
    if (!there.length) {
      toast(`${run.name} has no checkpoint to start from yet.`, { bad: true });
      return;
    }
    const step = /** @type {HTMLSelectElement} */ (
      h("select", {}, there.map((one) =>
        h(
          "option", { value: one.step },
          `step ${integer(one.step)}${one.val_loss === null ? "" : `, val/loss ${number(one.val_loss)}`}${one.best ? ", best" : ""}${one.latest ? ", latest" : ""} (${bytes(one.size_bytes)})`,
        ),
      ))
    );
    if (from !== undefined) step.value = String(from);
    const changes = /** @type {HTMLTextAreaElement} */ (
      h("textarea.mono", {
        rows: "4", cols: "48", spellcheck: "false",
        placeholder: `name=${run.name}-fork\ntrain.optimizer.lr=${run.spec.train?.optimizer?.lr ?? "3e-4"}`,
      })
    );
    openForm({
      title: `Fork ${run.name}`,
      about: "A new run continues from the checkpoint, with its optimizer state and data order. This run does not change.",
      fields: [field("from", step), field("with these changes", changes, "one a line, as path=value")],
      yes: "Fork",
      act: async () => {
        const lines = changes.value.split("\n").map((line) => line.trim()).filter(Boolean);
        const made = await post(`/runs/${run.id}/fork`, { step: Number(step.value), changes: lines });
        location.assign(`/runs/${made.id}`);
      },
    });
  });
}
