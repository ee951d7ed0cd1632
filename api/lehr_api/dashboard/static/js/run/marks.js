/** The marks on the curves of a run: stages, checkpoints, resumes, alerts. */

import { ACTIVE } from "../status.js";
/** @import { EventView } from "../types.js" */

/**
 * Return why the attempt before another one ended. Its number decides: clocks of nodes and server may differ.
 *
 * @param {EventView[]} events in order
 * @param {number} attempt
 */
function endBefore(events, attempt) {
  const end = events.findLast(
    ({ kind, data, attempt: number }) =>
      kind === "transition" && number < attempt && ACTIVE.has(data.from) && !ACTIVE.has(data.to)
  );
  return end?.message.slice(end.message.indexOf(": ") + 2);
}

/**
 * Return the marks of the charts, from the trainer's records.
 *
 * @param {EventView[]} events
 * @param {{step: number, seen: string, cause: string}[]} diagnosed alerts of the diagnosis
 * @param {import("../types.js").TrainStage[]} [stages] each but the first begins on the curve
 * @returns {import("../charts/traces.js").Marks}
 */
export function marksOf(events, diagnosed, stages = []) {
  const at = (/** @type {string} */ kind) => events.filter((event) => event.kind === kind && event.step !== null);
  return {
    stages: stages.slice(1).map(({ name, first_step }) => ({ step: first_step, name, label: `stage ${name} begins` })),
    checkpoints: at("checkpoint").map((event) => ({ step: Number(event.step), label: "checkpoint saved" })),
    resumes: at("resumed").map((event) => (
      { step: /** @type {number} */ (event.step), label: event.message, cause: endBefore(events, event.attempt) }
    )),
    alerts: [
      ...at("warning").map((event) => ({ step: /** @type {number} */ (event.step), label: event.message })),
      ...diagnosed.map(({ step, seen, cause }) => ({ step, label: seen, cause: cause || undefined })),
    ],
  };
}
