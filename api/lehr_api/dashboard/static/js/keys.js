/** Keyboard shortcuts, in one table. `?` shows it. */

import { h } from "./dom.js";
import { factList, inform } from "./form.js";

/** @typedef {{keys: string, what: string, act: (event: KeyboardEvent) => void}} Shortcut */

/** @type {Shortcut[]} */
const shortcuts = [];
/** The first key of two, and until when the second is waited for, in milliseconds. */
let pending = { key: "", until: 0 };

/**
 * @param {string} keys the name of a key, or of two in sequence: "g r"
 * @param {string} what
 * @param {(event: KeyboardEvent) => void} act
 */
export function shortcut(keys, what, act) {
  shortcuts.push({ keys, what, act });
}

/** What is typed into; keys act elsewhere. */
const TYPED = "textarea, select, input:not([type=checkbox], [type=range], [type=radio], [type=button])";

/** @param {KeyboardEvent} event */
function onKey(event) {
  const asked = document.querySelector("dialog[open], .cell-menu:popover-open");
  if (event.ctrlKey || event.metaKey || event.altKey || asked) return;
  if (event.target instanceof HTMLElement && event.target.matches(TYPED)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  // It presses what has the focus.
  if (event.key === "Enter" && document.activeElement?.matches("a, button, summary, input, .plot")) return;
  const combined = event.timeStamp < pending.until ? `${pending.key} ${event.key}` : event.key;
  const pressed = shortcuts.find((one) => one.keys === combined);
  const begins = !pressed && shortcuts.some((one) => one.keys.startsWith(`${event.key} `));
  pending = { key: event.key, until: begins ? event.timeStamp + 1000 : 0 };
  if (!pressed) return;
  event.preventDefault();
  pressed.act(event);
}

function showHelp() {
  const keycaps = (/** @type {string} */ keys) => keys.split(" ").map((key, i) => [i > 0 && " ", h("kbd", {}, key)]);
  inform("Keyboard", factList(shortcuts.map(({ keys, what }) => [keycaps(keys), what])));
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
