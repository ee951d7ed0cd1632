/** What is new about a run, for browser notifications: an end or an alert. */

import { duration, integer, metric } from "./format.js";
import { ENDED } from "./status.js";

/**
 * @typedef {{name: string, state: string, reason: string | null, alerts: string[], step?: number | null, total_steps?: number,
 *   latest?: Record<string, import("./types.js").Latest>, started_at?: number | null, ended_at?: number | null}} Seen
 * @typedef {{title: string, body: string}} News
 */

/**
 * Describe how a run ended: its reason, where it was, what it reached, and how long that took.
 *
 * @param {Seen} run
 */
function ending({ reason, step, total_steps: total, latest = {}, started_at: start, ended_at: end }) {
  const loss = ["val/loss", "train/loss"].find((name) => latest[name]);
  return [
    reason,
    step === null || step === undefined ? "It ended before its first step." : `Step ${integer(step)}${total ? ` of ${integer(total)}` : ""}`,
    loss && `${loss} ${metric(loss, latest[loss].value)}`,
    typeof start === "number" && typeof end === "number" && `after ${duration(end - start)}`,
  ].filter(Boolean).join(" · ");
}

/**
 * Compare a run with what was last seen of it.
 *
 * @param {Seen | undefined} before undefined the first time: then nothing is new
 * @param {Seen} now
 * @returns {News[]}
 */
export function newsOf(before, now) {
  if (before === undefined) return [];
  const known = new Set(before.alerts);
  const found = now.alerts.filter((alert) => !known.has(alert)).map((alert) => ({ title: `${now.name}: alert`, body: now.step ? `${alert} (step ${integer(now.step)})` : alert }));
  if (ENDED.has(now.state) && before.state !== now.state) {
    found.push({ title: `${now.name} ${now.state}`, body: ending(now) });
  }
  return found;
}
