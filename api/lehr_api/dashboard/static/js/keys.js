/** Keyboard shortcuts, in one table. `?` shows it. */

import { h } from "./dom.js";
import { inform } from "./form.js";

/** @typedef {{keys: string, what: string, act: (event: KeyboardEvent) => void}} Shortcut */

/** @type {Shortcut[]} */
const shortcuts = [];
let pending = "";
let pendingTimer = 0;

/**
 * @param {string} keys the name of a key, or of two in sequence: "g r"
 * @param {string} what
 * @param {(event: KeyboardEvent) => void} act
 */
export function shortcut(keys, what, act) {
  shortcuts.push({ keys, what, act });
}

/** @param {EventTarget | null} target */
function types(target) {
  return (
    target instanceof HTMLElement &&
    (target.isContentEditable ||
      target instanceof HTMLTextAreaElement ||
      target instanceof HTMLSelectElement ||
      (target instanceof HTMLInputElement && !["checkbox", "range", "radio", "button"].includes(target.type)))
  );
}

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (types(event.target)) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  // It presses what has the focus.
  if (event.key === "Enter" && document.activeElement?.matches("a, button, summary, input, .plot")) return;
  const combined = pending ? `${pending} ${event.key}` : event.key;
  pending = "";
  clearTimeout(pendingTimer);
  const found = shortcuts.find((one) => one.keys === combined);
  if (found) {
    event.preventDefault();
    found.act(event);
  } else if (shortcuts.some((one) => one.keys.startsWith(`${event.key} `))) {
    pending = event.key;
    pendingTimer = window.setTimeout(() => {
      pending = "";
    }, 1000);
  }
}

function showHelp() {
  const keycaps = (/** @type {string} */ keys) => keys.split(" ").map((key, i) => [i > 0 && " ", h("kbd", {}, key)]);
  inform(
    "Keyboard", h("dl.facts", {}, shortcuts.map(({ keys, what }) => [h("dt", {}, keycaps(keys)), h("dd", {}, what)])),
  );
}

/**
 * Move a mark through rows with j and k. Enter or o opens a row, x selects it, e folds a group or unfolds it.
 *
 * @param {{count: () => number, show: (index: number) => void, open: (index: number) => void,
 *   select: (index: number) => void, toggle: (index: number) => void}} rows
 */
export function rowKeys(rows) {
  let at = -1;
  const move = (/** @type {number} */ by) => {
    const n = rows.count();
    if (!n) return;
    at = Math.min(n - 1, Math.max(0, at + by));
    rows.show(at);
  };
  shortcut("j", "next row", () => move(1));
  shortcut("k", "row before", () => move(-1));
  for (const key of ["Enter", "o"]) shortcut(key, "open the row", () => at >= 0 && rows.open(at));
  shortcut("x", "select the row, or all runs of a group", () => at >= 0 && rows.select(at));
  shortcut("e", "fold or unfold the group", () => at >= 0 && rows.toggle(at));
}

export function install() {
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav a[data-key]"))) {
    shortcut(
      `g ${link.dataset.key}`, `go to the ${(link.textContent ?? "").toLowerCase()}`, () => location.assign(link.href),
    );
  }
  shortcut("t", "dark or light", () => document.getElementById("theme")?.click());
  shortcut("?", "this list", showHelp);
  document.getElementById("help")?.addEventListener("click", showHelp);
  document.addEventListener("keydown", onKey);
}
