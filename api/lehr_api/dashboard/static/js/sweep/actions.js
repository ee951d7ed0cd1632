/** The actions on a sweep: cancel, retry failed trials, extend. */

import { post } from "../api.js";
import { h, input } from "../dom.js";
import { acts, closing, field, openForm, order } from "../form.js";
import * as f from "../format.js";
import { tryTo } from "../notices.js";
import { gpuHours } from "../run/fork.js";
import { ENDED } from "../status.js";
import { inOrder } from "./trials.js";
/** @import { SweepDetail } from "../types.js" */

/** How many of the best trials the comparison begins with. */
const COMPARED = 20;

/** How many of its runs have not ended. @param {SweepDetail} sweep */
const living = (sweep) => Object.entries(sweep.counts).reduce((sum, [state, n]) => sum + (ENDED.has(state) ? 0 : n), 0);

/** @param {SweepDetail} sweep */
const cancel = (sweep) => openForm({
  title: `Cancel ${sweep.name}?`,
  fields: h(
    "p", {}, `${living(sweep)} of its ${sweep.trials_total} runs have not ended; they are stopped without saving.`,
  ),
  yes: "Cancel the sweep",
  danger: true,
  act: () => order(`/sweeps/${sweep.id}/cancel`, "Cancelling."),
});

/** @param {SweepDetail} sweep */
const retry = (sweep) => tryTo(() => order(`/sweeps/${sweep.id}/retry`, "The failed trials are queued again."));

/** Parse a value as a spec does: a number if it is one. @param {string} text */
const value = (text) => (
  text !== "" && Number.isFinite(Number(text)) ? Number(text) : text === "true" ? true : text === "false" ? false : text
);

/** Say what so many trials more need. @param {SweepDetail} sweep @param {number} trials */
function hoursOf(sweep, trials) {
  const done = sweep.counts.completed ?? 0;
  // The hours of trials that ended early do not predict those of a whole one.
  return gpuHours(sweep.cost && done && done === sweep.trials_total ? trials * sweep.cost.gpu_hours / done : null);
}

/** Repeat the proposed trials. @param {SweepDetail} sweep @param {import("../types.js").NextTrials} next */
function repeat(sweep, { repeat: runs, trials }) {
  const n = trials / runs.length;
  const left = [...runs];
  openForm({
    title: `Add ${trials} trials to ${sweep.name}`,
    about: `${n} more seeds of ${runs.length} of its trials. They are sweeps of their own, and count for this one.`,
    fields: [h("p.hint", {}, hoursOf(sweep, trials))],
    yes: "Add",
    act: async () => {
      // After an error, those that are queued are not queued again.
      for (; left.length; left.shift()) await post(`/runs/${left[0]}/seeds`, { n });
      location.reload();
    },
  });
}

/** Add trials: first those that the verdict proposes, if it does. @param {SweepDetail} sweep */
function extend(sweep) {
  const next = sweep.next_trials;
  const byValue = sweep.method === "grid" || sweep.method === "list";
  const what = sweep.method === "campaign" ? "GPU-h" : "trials";
  const proposed = next?.parameters ?? { [Object.keys(next?.points?.[0] ?? {})[0] ?? sweep.parameters[0]]:
    (next?.points ?? []).flatMap((point) => Object.values(point)) };
  const [[first, values]] = Object.entries(proposed);
  const paths = [...new Set([first, ...(sweep.method === "grid" ? sweep.parameters : [])])];
  const path = /** @type {HTMLSelectElement} */ (h("select", {}, paths.map((one) => h("option", { value: one }, one))));
  const text = input(byValue
    ? { required: true, value: values.join(", ") }
    : { type: "number", min: "1", max: "10000", value: "8", required: true });
  const cost = h("p.hint");
  const added = () => (byValue ? text.value.split(",").map((one) => value(one.trim())) : [Number(text.value)]);
  const show = () => {
    const tried = new Set(sweep.trials.map((trial) => JSON.stringify(trial.parameters[path.value]))).size;
    const trials = byValue ? (added().length * sweep.trials_total) / Math.max(1, tried) : Number(text.value);
    cost.textContent = what === "GPU-h" ? "" : hoursOf(sweep, trials);
  };
  text.addEventListener("input", show);
  path.addEventListener("change", show);
  show();
  openForm({
    title: byValue ? `Add values to ${sweep.name}` : `Add ${what} to ${sweep.name}`,
    about: "Existing trials do not change. New ones are queued.",
    fields: byValue
      ? [field("parameter", path), field("values", text, "with commas between them"), cost] : [field(what, text), cost],
    yes: "Add",
    act: () => post(`/sweeps/${sweep.id}/extend`, sweep.method === "list"
      ? { points: added().map((one) => ({ [path.value]: one })) }
      : byValue ? { parameters: { [path.value]: added() } } : { [what === "GPU-h" ? "gpu_hours" : what]: added()[0] }),
  });
}

/** Return why a grid has no proposal yet; null if all has ended. @param {SweepDetail} sweep */
export function tooEarly(sweep) {
  const left = living(sweep);
  if (!left || sweep.method !== "grid") return null;
  return `too early for proposals: ${left} of ${f.integer(sweep.trials_total)} trials have not ended`;
}

/** Two buttons, and a menu; on a phone they are in it. @param {SweepDetail} sweep */
export function sweepActions(sweep) {
  const { next_trials: next, counts, method } = sweep;
  const live = living(sweep) > 0;
  const compared = inOrder(sweep.trials).slice(0, COMPARED).map((trial) => trial.run.id);
  const button = (/** @type {string} */ label, /** @type {() => unknown} */ act, kind = "") =>
    h(`button${kind}`, acts({ key: label, type: "button", onclick: closing(act) }), label);
  const add = () => method !== "list" && button(
    method === "grid" ? "Add values" : method === "campaign" ? "Add GPU-hours" : "Add trials", () => extend(sweep),
  );
  const proposed = () => next && !live && button(
    `Add ${next.trials} proposed ${next.trials === 1 ? "trial" : "trials"}`,
    () => (next.repeat.length ? repeat(sweep, next) : extend(sweep)), ".main",
  );
  const main = () => [
    proposed() || add(),
    compared.length > 1 && h(
      "a.button", { href: `/compare?runs=${compared.join(",")}` },
      compared.length < sweep.trials_total ? `Compare the best ${compared.length}` : "Compare",
    ),
  ];
  return h(
    "div.actions", {}, main(), h(
      "details.menu", {}, h("summary", { "aria-label": "More actions" }, "⋯"), h(
        "div.menu-list", {}, h("div.phone", {}, main()), next && !live && add(),
        h("a.button", { href: `/api/v1/reports/${sweep.id}`, target: "_blank", rel: "noopener" }, "Report"),
        h("a.button", { href: `/law?sweep=${sweep.id}`, title: "What it says of a larger training" }, "Law"),
        (counts.failed ?? 0) > 0 && button("Run failed again", () => retry(sweep)),
        live && button("Cancel", () => cancel(sweep), ".danger"),
      ),
    ),
  );
}
