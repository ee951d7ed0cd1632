/**
 * The steps where a run's learning rate schedule changes (trainer: configs/schedule.py). Before the step of a fork its
 * parent's schedule held, not its own.
 */

import { scientific } from "../format.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */

/**
 * @param {RunDetail} run
 * @returns {{step: number, label: string}[]} in order of steps
 */
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
