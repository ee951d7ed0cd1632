/** Change the priority of waiting runs, from the queue. */

import { put } from "../api.js";
import { h } from "../dom.js";
import { field, openForm } from "../form.js";
import { toast } from "../notices.js";
import { acts } from "../roles.js";

/** @typedef {import("../types.js").QueueEntry} QueueEntry */

/** @param {QueueEntry[]} entries those of one row */
function change(entries) {
  const names = entries.length > 1
    ? `${entries.length} runs, ${entries[0].name} to ${entries[entries.length - 1].name}`
    : entries[0].name;
  const number = /** @type {HTMLInputElement} */ (h(
    "input", { type: "number", min: "-100", max: "100", step: "1", required: true, value: String(entries[0].priority) },
  ));
  openForm({
    title: `Priority of ${names}`,
    about: "A higher priority starts first. Runs that hold GPUs keep them.",
    fields: [field("priority", number, "from -100 to 100")],
    yes: "Change",
    act: async () => {
      for (const { run_id: id } of entries) await put(`/runs/${id}/priority`, { priority: Number(number.value) });
      toast(`The priority is ${number.value}.`);
    },
  });
}

/**
 * Return the priority of a row of the queue, as the button that changes it.
 *
 * @param {QueueEntry[]} entries
 */
export const priorityButton = (entries) => h(
  "button.quiet",
  acts({
    type: "button", "aria-label": `Change the priority of ${entries[0].name}`, title: "Change the priority",
    onclick: () => change(entries),
  }),
  String(entries[0].priority),
);
