/** Fork a run: start a new one from a checkpoint, with a changed spec. */

import { get, post } from "../api.js";
import { h } from "../dom.js";
import { bytes, integer, number } from "../format.js";
import { field, openForm } from "../form.js";
import { toast, tryTo } from "../notices.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */

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
