/** Print a page as a report: with dark ink on a light ground, whatever the page looks like. */

import { h } from "../dom.js";

let before = "";

/** @param {string} theme */
function show(theme) {
  document.documentElement.dataset.theme = theme;
  // Charts have their colours in them, and draw themselves again.
  document.dispatchEvent(new CustomEvent("lehr:theme", { detail: theme }));
}

function lighten() {
  before = document.documentElement.dataset.theme ?? "light";
  if (before === "dark") show("light");
}

function restore() {
  if (before === "dark") show("dark");
}

/** Make the button that prints the page. */
export function printButton() {
  addEventListener("beforeprint", lighten);
  addEventListener("afterprint", restore);
  return h("button", { type: "button", onclick: () => print() }, "Print");
}
