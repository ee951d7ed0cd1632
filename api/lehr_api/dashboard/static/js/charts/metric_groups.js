/** Groups of metrics on a board, by the prefix of their names; each can be folded. */

import { h } from "../dom.js";
import { memory } from "../urlstate.js";

/** Return the group of a metric. @param {string} name */
export function groupOf(name) {
  const slash = name.indexOf("/");
  if (slash > 0) return name.slice(0, slash);
  return /tokens_per_s|_s$|mfu/.test(name) ? "speed" : "other";
}

/** Compare names, numbers in them by their size: layer.2 is before layer.10. @param {string} a @param {string} b */
export const byNumber = (a, b) => a.localeCompare(b, "en", { numeric: true });

/** The digest of a batch shows equal data by equal numbers, and nothing as a curve. */
const DIGEST = "data/digest";
/** @type {Record<string, number>} */
const ORDER = { train: 0, val: 1, other: 2, speed: 3, memory: 4 };

/**
 * Return each group with its metrics, the usual groups first.
 *
 * @param {string[]} names
 * @returns {[string, string[]][]}
 */
export function grouped(names) {
  const groups = Map.groupBy(names.filter((one) => one !== DIGEST), groupOf);
  return [...groups].sort(([a], [b]) => (ORDER[a] ?? 9) - (ORDER[b] ?? 9) || byNumber(a, b));
}

/** @returns {string[]} */
const closed = () => memory.get("closed-groups", []);

/**
 * Return what gives the elements of a group: made once, so that what is folded stays folded.
 *
 * @param {string[] | undefined} shown those that are open at first; all but those that a user closed by default
 */
export function metricGroups(shown) {
  /** @type {Map<string, {element: HTMLElement, count: HTMLElement, charts: HTMLElement}>} */
  const made = new Map();
  return (/** @type {string} */ name) => {
    const [count, charts] = [h("span.count"), h("div.charts")];
    const open = shown ? shown.includes(name) : !closed().includes(name);
    const ontoggle = (/** @type {any} */ { target }) => {
      const others = closed().filter((one) => one !== name);
      memory.set("closed-groups", target.open ? others : [...others, name]);
    };
    const group = made.get(name) ?? {
      count, charts, element: h("details.group", { open, ontoggle }, h("summary", {}, name, " ", count), charts),
    };
    made.set(name, group);
    return group;
  };
}
