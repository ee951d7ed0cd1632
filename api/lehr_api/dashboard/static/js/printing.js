/** Print a page as a report: with all of its charts, and with dark ink on a light ground. */

import { h } from "./dom.js";

/** What fetches and draws the charts of the page that nobody has scrolled to. @type {Set<() => Promise<void>>} */
const loaders = new Set();
let wasDark = false;

/** @param {string} theme */
function show(theme) {
  document.documentElement.dataset.theme = theme;
  // Charts have their colours in them, and draw themselves again.
  document.dispatchEvent(new CustomEvent("lehr:theme", { detail: theme }));
}

function lighten() {
  if (document.documentElement.dataset.theme !== "dark") return;
  wasDark = true;
  show("light");
}

function restore() {
  if (!wasDark) return;
  wasDark = false;
  show("dark");
}

/**
 * Call a function before the page is printed, and wait for it.
 *
 * @param {() => Promise<void>} load
 * @returns {() => void} what takes it away again
 */
export function beforePrinting(load) {
  loaders.add(load);
  return () => loaders.delete(load);
}

/** Load all charts, then open the browser's print dialog. */
async function printPage() {
  await Promise.all([...loaders].map((load) => load()));
  lighten();
  // Figures that are drawn asynchronously need a moment, which a print dialog does not give.
  await new Promise((done) => {
    requestAnimationFrame(done);
  });
  print();
}

/** Return a button that prints the page. */
export const printButton = () => h("button", { type: "button", onclick: printPage }, "Print");

/** Let Ctrl+P do what the button does. The browser's menu cannot wait: it prints what is drawn. */
export function installPrinting() {
  addEventListener("beforeprint", lighten);
  addEventListener("afterprint", restore);
  addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey || event.key.toLowerCase() !== "p") return;
    event.preventDefault();
    printPage();
  });
}
