/** The filter of a plain list: part of a name, project or tag, kept in the address. */

import { byId } from "./dom.js";
import { read, write } from "./urlstate.js";

const TYPING_MS = 200;

/**
 * @param {() => void} onChange
 * @returns {() => string} what is looked for
 */
export function listFilter(onChange) {
  const input = /** @type {HTMLInputElement} */ (byId("filter"));
  input.value = read("filter") ?? "";
  byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
  let typing = 0;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(() => {
      write({ filter: input.value.trim() });
      onChange();
    }, TYPING_MS);
  });
  return () => input.value.trim();
}
