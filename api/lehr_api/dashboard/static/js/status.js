/** Show states by shape and word, never by colour alone; also in the browser's tab. */

import { h, s } from "./dom.js";

/** @type {Record<string, [string, Record<string, string>][]>} */
const SHAPES = {
  queued: [["circle", { cx: "5", cy: "5", r: "4", fill: "none", stroke: "currentColor", "stroke-width": "1.5" }]],
  starting: [
    ["circle", { cx: "5", cy: "5", r: "4", fill: "none", stroke: "currentColor", "stroke-width": "1.5" }],
    ["path", { d: "M5 1a4 4 0 0 1 0 8z", fill: "currentColor" }],
  ],
  running: [["circle", { cx: "5", cy: "5", r: "4.5", fill: "currentColor" }]],
  external: [
    ["circle", { cx: "5", cy: "5", r: "4", fill: "none", stroke: "currentColor", "stroke-width": "1.5" }],
    ["circle", { cx: "5", cy: "5", r: "2", fill: "currentColor" }],
  ],
  stopping: [["rect", {
    x: "1.5", y: "1.5", width: "7", height: "7", fill: "none", stroke: "currentColor", "stroke-width": "1.5",
  }]],
  paused: [["path", { d: "M2 1h2v8H2zM6 1h2v8H6z", fill: "currentColor" }]],
  completed: [["path", { d: "M1 5.500l2.800 2.800L9 2", fill: "none", stroke: "currentColor", "stroke-width": "1.8" }]],
  failed: [
    ["path", { d: "M1.500 1.500l7 7M8.500 1.500l-7 7", fill: "none", stroke: "currentColor", "stroke-width": "1.8" }],
  ],
  cancelled: [
    ["circle", { cx: "5", cy: "5", r: "4", fill: "none", stroke: "currentColor", "stroke-width": "1.5" }],
    ["path", { d: "M2.200 7.800l5.600-5.600", stroke: "currentColor", "stroke-width": "1.5" }],
  ],
  pruned: [["path", { d: "M1 5h8", stroke: "currentColor", "stroke-width": "2" }]],
};
SHAPES.waiting = SHAPES.queued;
SHAPES.finished = SHAPES.completed;
SHAPES.passed = SHAPES.completed;
SHAPES.skipped = SHAPES.pruned;
SHAPES.off = SHAPES.pruned;
SHAPES.not_judged = [["path", {
  d: "M2.5 3.5a2.500 2.500 0 1 1 3.600 2.200q-1.100.6-1.100 1.300M5 8.700v.6", fill: "none", stroke: "currentColor",
  "stroke-width": "1.4",
}]];

export const ENDED = new Set(["completed", "failed", "cancelled", "pruned"]);
export const ACTIVE = new Set(["starting", "running", "stopping"]);
/** States of runs of which processes report. */
export const REPORTING = [...ACTIVE, "external"];

/** @type {Record<string, string>} the words for a state, where they differ from its name */
const WORDS = { queued: "waits", not_judged: "not judged" };

/** @param {string} state @param {import("./dom.js").Child} [word] */
export function stateMark(state, word = WORDS[state] ?? state) {
  const icon = s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" });
  for (const [tag, attributes] of SHAPES[state] ?? SHAPES.queued) icon.append(s(tag, attributes));
  return h(`span.state.state-${state}`, {}, icon, h("span", {}, word));
}

/** Count runs by state: "4 completed, 1 failed". @param {Record<string, number>} counts */
export function countsLine(counts) {
  const shown = Object.entries(counts).filter(([, n]) => n > 0);
  return h(
    "span.counts", {},
    shown.map(([state, n]) => stateMark(state, [n, h("span.word", {}, ` ${state === "queued" ? "wait" : state}`)])),
  );
}

/** Describe what a run does now. @param {import("./types.js").RunView} run */
export function runState(run) {
  if (run.state === "external" && run.liveness === "unreachable") return stateMark(run.state, "silent");
  if (run.liveness !== "ok") return stateMark(run.state, run.liveness);
  return stateMark(run.state);
}

/**
 * Explain the state: why a run waits, or why it failed.
 *
 * @param {import("./types.js").RunView} run
 * @returns {string | null}
 */
export function runReason(run) {
  if (run.state === "queued") return run.pending_reason ?? run.reason;
  if (run.training_over) return run.training_over;
  if (run.state === "external" && run.liveness !== "stalled") return run.reason;
  if (run.liveness === "unreachable") return "its node does not respond; the run may continue";
  if (run.liveness === "stalled") return "alive, but no step for a long time";
  if (run.state === "running" || run.state === "completed") return null;
  return run.reason;
}

/**
 * Return the progress, from 0 to 1; null before the first step, and where the number of steps is not known.
 *
 * @param {import("./types.js").RunView} run
 */
export function progress(run) {
  return run.step === null || !run.total_steps ? null : Math.min(1, run.step / run.total_steps);
}

/**
 * Return the seconds that its attempts have taken: without the time in the queue and in a pause.
 *
 * @param {{attempts: import("./types.js").AttemptView[]}} run
 */
export function timeHeld(run) {
  const taken = run.attempts.filter((one) => one.exited_at !== null)
    .map((one) => Number(one.exited_at) - (one.dispatched_at ?? one.created_at));
  return taken.length ? taken.reduce((a, b) => a + b, 0) : null;
}

/** @type {Record<string, [sign: string, icon: string]>} */
const LOOKS = {
  queued: ["…", "waiting"],
  waiting: ["…", "waiting"],
  starting: ["▶", "running"],
  running: ["▶", "running"],
  stopping: ["▶", "running"],
  external: ["▶", "running"],
  paused: ["‖", "waiting"],
  completed: ["✓", "done"],
  finished: ["✓", "done"],
  passed: ["✓", "done"],
  failed: ["✕", "failed"],
  cancelled: ["–", "waiting"],
  pruned: ["–", "waiting"],
};

/**
 * Return the title of a tab.
 *
 * @param {string} name
 * @param {string} state
 * @param {number | null} [done] share of what it does, while it runs
 */
export function tabTitle(name, state, done = null) {
  const sign = LOOKS[state]?.[0];
  const share = state === "running" && done !== null ? ` ${Math.floor(done * 100)} %` : "";
  return `${sign ? `${sign}${share} ` : ""}${name} · Lehr`;
}

/** @param {string} name @param {string} state @param {number | null} [done] */
export function showTabState(name, state, done = null) {
  const title = tabTitle(name, state, done);
  if (document.title !== title) document.title = title;
  const link = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"));
  const icon = LOOKS[state]?.[1];
  if (!link || !icon || link.dataset.state === icon) return;
  link.dataset.state = icon;
  link.href = link.href.replace(/icon(-\w+)?\.svg$/, `icon-${icon}.svg`);
}

/** A lateness that is not shown, in seconds: until a node has reported and the server has stored and sent it. */
const USUAL_S = 5;

/** How late the live figures come: the events of a busy server come late. */
export class FiguresAge {
  /**
   * By live run: when its newest figures were recorded and how late they came. @type {Map<string, {recorded: number,
   * late: number}>}
   */
  runs = new Map();

  /**
   * @param {import("./types.js").RunView} run of an event
   * @param {number} now by the server's clock, in seconds since the epoch
   */
  take({ id, state, liveness, recorded_at: recorded }, now) {
    const before = this.runs.get(id);
    if (!REPORTING.includes(state) || liveness !== "ok" || recorded === null) this.runs.delete(id);
    // The first event may be of something else than new figures.
    else if (!before) this.runs.set(id, { recorded, late: 0 });
    else if (recorded > before.recorded) this.runs.set(id, { recorded, late: now - recorded });
  }

  /**
   * Return how late the newest figures of the live runs came, the median. A run without newer ones may evaluate or
   * save.
   *
   * @returns {number | null} seconds; null for what is usual
   */
  get late() {
    const all = [...this.runs.values()].map(({ late }) => late).sort((a, b) => a - b);
    const median = all[Math.floor((all.length - 1) / 2)] ?? 0;
    return median > USUAL_S ? median : null;
  }
}
