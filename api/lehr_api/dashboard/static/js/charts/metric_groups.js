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

/** The elements of the groups: made once, so that what is folded stays folded. */
export class MetricGroups {
  /** @param {string[] | undefined} open those that are open at first; all but those that a user closed by default */
  constructor(open) {
    this.open = open;
    /** @type {Map<string, {element: HTMLElement, count: HTMLElement, charts: HTMLElement}>} */
    this.made = new Map();
  }

  /** @param {string} name */
  of(name) {
    const known = this.made.get(name);
    if (known) return known;
    const open = this.open ? this.open.includes(name) : !closed().includes(name);
    const count = h("span.count");
    const charts = h("div.charts");
    const ontoggle = (/** @type {any} */ { target }) => {
      const others = closed().filter((one) => one !== name);
      memory.set("closed-groups", target.open ? others : [...others, name]);
    };
    const group = {
      count, charts, element: h("details.group", { open, ontoggle }, h("summary", {}, name, " ", count), charts),
    };
    this.made.set(name, group);
    return group;
  }
}
