/** Show a state in the title and the icon of the browser's tab. */

/** @type {Record<string, [sign: string, icon: string]>} */
const LOOKS = {
  queued: ["…", "waiting"],
  waiting: ["…", "waiting"],
  starting: ["▶", "running"],
  running: ["▶", "running"],
  stopping: ["▶", "running"],
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

/**
 * @param {string} name
 * @param {string} state
 * @param {number | null} [done]
 */
export function showTabState(name, state, done = null) {
  const title = tabTitle(name, state, done);
  if (document.title !== title) document.title = title;
  const link = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"));
  const icon = LOOKS[state]?.[1];
  if (!link || !icon || link.dataset.state === icon) return;
  link.dataset.state = icon;
  link.href = link.href.replace(/icon(-\w+)?\.svg$/, `icon-${icon}.svg`);
}
