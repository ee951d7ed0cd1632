/** The marks on the curves of a run: checkpoints, resumes, changes of the schedule, alerts. */

import { scientific } from "../format.js";
import { ACTIVE } from "../status.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */

/** @param {RunDetail} run @returns {{step: number, label: string}[]} in order of steps */
export function scheduleMarks(run) {
  const { schedule, steps, optimizer } = run.spec.train ?? {};
  /** @type {{step: number, label: string}[]} */
  const marks = [];
  const fork = run.provenance.fork;
  const changed = fork && (Array.isArray(fork.changes) ? fork.changes : Object.entries(fork.changes ?? {}).map(
    ([path, value]) => `${path}=${value}`
  ));
  const about = (changed ?? []).filter((/** @type {string} */ one) => /\.(schedule|optimizer)\b/.test(one));
  if (about.length) {
    marks.push({
      step: fork.step,
      label: `forked with ${about.map((/** @type {string} */ one) => one.replace("train.", "")).join(", ")}`,
    });
  }
  if (!schedule || !steps) return marks;
  const start = schedule.starts_after ?? 0;
  const span = steps - start;
  if (start > 0) marks.push({ step: start, label: `the ${schedule.name} schedule begins` });
  const warmup = schedule.warmup_steps ?? Math.round(span * (schedule.warmup_ratio ?? 0.02));
  if (warmup > 1) marks.push({ step: start + warmup, label: `warmup ends at LR ${scientific(optimizer?.lr)}` });
  if (schedule.name === "wsd") {
    const decay = schedule.decay_steps ?? Math.round(span * (schedule.decay_ratio ?? 0.1));
    if (decay > 0) marks.push({ step: steps - decay, label: "LR decay begins" });
  }
  return marks.filter(({ step }) => step >= (fork?.step ?? 0)).sort((a, b) => a.step - b.step);
}

/**
 * @typedef {import("../types.js").EventView} EventView
 */

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
 * @param {RunDetail} run
 * @returns {import("../charts/chart.js").Marks}
 */
export function marksOf(events, diagnosed, run) {
  const at = (/** @type {string} */ kind) => events.filter((event) => event.kind === kind && event.step !== null);
  return {
    schedule: scheduleMarks(run),
    checkpoints: at("checkpoint").map((event) => /** @type {number} */ (event.step)),
    resumes: at("resumed").map((event) => (
      { step: /** @type {number} */ (event.step), label: event.message, cause: endBefore(events, event.attempt) }
    )),
    alerts: [
      ...at("warning").map((event) => ({ step: /** @type {number} */ (event.step), label: event.message })),
      ...diagnosed.map(({ step, seen, cause }) => ({ step, label: seen, cause: cause || undefined })),
    ],
  };
}
