/** Repeat a run with other seeds. */

import { post } from "./api.js";
import { h } from "./dom.js";
import { field, openForm } from "./form.js";
import * as f from "./format.js";

/** @typedef {import("./types.js").RunDetail} RunDetail */

/**
 * Describe how many GPU-hours a launch is expected to need.
 *
 * @param {number | null} hours null where no run of the kind has completed
 */
export const gpuHours = (hours) => (
  hours === null
    ? "No such run has completed yet, so its GPU-hours are not known."
    : hours < 0.1
    ? "Under 0.1 GPU-hours, as the completed ones took."
    : `About ${f.si(hours)} GPU-hours, as the completed ones took.`
);

/** @param {RunDetail} run */
export function repeat(run) {
  const number = /** @type {HTMLInputElement} */ (h(
    "input", { type: "number", min: "1", max: "20", value: "3", required: true },
  ));
  const each = run.state === "completed" && run.cost ? run.cost.gpu_hours : null;
  const cost = h("p.hint");
  const show = () => {
    cost.textContent = gpuHours(each === null ? null : each * Number(number.value));
  };
  number.addEventListener("input", show);
  show();
  openForm({
    title: `Repeat ${run.name} with other seeds`,
    about: "The same spec, as a sweep over its seed. It shows the noise between seeds, by which comparisons are judged.",
    fields: [field("runs", number), cost],
    yes: "Queue them",
    act: async () => {
      const made = await post(`/runs/${run.id}/seeds`, { n: Number(number.value) });
      location.assign(`/sweeps/${made.id}`);
    },
  });
}
