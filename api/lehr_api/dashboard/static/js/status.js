/** Show states by shape and word, never by colour alone; also in the browser's tab. */

import { h, s } from "./dom.js";

/**
 * @typedef {object} Look
 * @property {string} [line] its icon, as a path that is drawn
 * @property {string} [fill] and as one that is filled
 * @property {string} [width] of the line
 * @property {string} sign before the title of a tab
 * @property {string} icon of a tab
 */

const RING = "M1 5a4 4 0 1 0 8 0a4 4 0 1 0-8 0z";
const WAITS = { line: RING, sign: "…", icon: "waiting" };
const RUNS = { sign: "▶", icon: "running" };
const DONE = { line: "M1 5.5l2.8 2.8L9 2", width: "1.8", sign: "✓", icon: "done" };
const NONE = { line: "M1 5h8", width: "2", sign: "–", icon: "waiting" };
const QUESTION = "M2.5 3.5a2.5 2.5 0 1 1 3.6 2.2q-1.1.6-1.1 1.3M5 8.7v.6";
/** @type {Record<string, Look>} */
const LOOKS = {
  queued: WAITS, waiting: WAITS, completed: DONE, finished: DONE, passed: DONE, pruned: NONE, skipped: NONE, off: NONE,
  starting: { ...RUNS, line: RING, fill: "M5 1a4 4 0 0 1 0 8z" },
  running: { ...RUNS, fill: "M.5 5a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z" },
  external: { ...RUNS, line: RING, fill: "M3 5a2 2 0 1 0 4 0a2 2 0 1 0-4 0z" },
  stopping: { ...RUNS, line: "M1.5 1.5h7v7h-7z" },
  paused: { fill: "M2 1h2v8H2zM6 1h2v8H6z", sign: "‖", icon: "waiting" },
  failed: { line: "M1.5 1.5l7 7M8.5 1.5l-7 7", width: "1.8", sign: "✕", icon: "failed" },
  cancelled: { ...NONE, line: `${RING}M2.2 7.8l5.6-5.6`, width: "1.5" },
  not_judged: { ...NONE, line: QUESTION, width: "1.4" },
};

export const ENDED = new Set(["completed", "failed", "cancelled", "pruned"]);
export const ACTIVE = new Set(["starting", "running", "stopping"]);
/** States of runs of which processes report. */
export const REPORTING = [...ACTIVE, "external"];

/** @type {Record<string, string>} the words for a state, where they differ from its name */
const WORDS = { queued: "waits", not_judged: "not judged" };

/** @param {string} state @param {import("./dom.js").Child} [word] */
export function stateMark(state, word = WORDS[state] ?? state) {
  const { line = "", fill = "", width = "1.5" } = LOOKS[state] ?? WAITS;
  const icon = s(
    "svg", { viewBox: "0 0 10 10", "aria-hidden": "true" },
    line && s("path", { d: line, fill: "none", stroke: "currentColor", "stroke-width": width }),
    fill && s("path", { d: fill, fill: "currentColor" }),
  );
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

/**
 * Return the title of a tab.
 *
 * @param {string} name
 * @param {string} state
 * @param {number | null} [done] share of what it does, while it runs
 */
export function tabTitle(name, state, done = null) {
  const sign = LOOKS[state]?.sign;
  const share = state === "running" && done !== null ? ` ${Math.floor(done * 100)} %` : "";
  return `${sign ? `${sign}${share} ` : ""}${name} · Lehr`;
}

/** @param {string} name @param {string} state @param {number | null} [done] */
export function showTabState(name, state, done = null) {
  const title = tabTitle(name, state, done);
  if (document.title !== title) document.title = title;
  const link = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"));
  const icon = LOOKS[state]?.icon;
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
