/** What is new about a run, for browser notifications: an end or an alert. */

import { ENDED } from "./status.js";

/**
 * @typedef {{name: string, state: string, reason: string | null, alerts: string[]}} Seen
 * @typedef {{title: string, body: string}} News
 */

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
  const found = now.alerts.filter((alert) => !known.has(alert)).map((alert) => ({ title: `${now.name}: alert`, body: alert }));
  if (ENDED.has(now.state) && before.state !== now.state) {
    found.push({ title: `${now.name} ${now.state}`, body: now.reason ?? "" });
  }
  return found;
}
