/** Differences of the code of compared runs: the files that differ from the baseline's, and how. */

import { codeDiff } from "../code_diff.js";
import { fill, h } from "../dom.js";
import { refusal } from "../roles.js";

/**
 * @typedef {import("../types.js").ComparisonView} ComparisonView
 *
 * @typedef {object} Other a capsule that is not the baseline's
 * @property {string} digest
 * @property {string[]} runs those that have it
 */

const DIGEST = /^[0-9a-f]{64}$/;

/**
 * Return which other code the runs have than the baseline.
 *
 * @param {Pick<ComparisonView, "runs" | "differences">} comparison
 * @param {string} base id of the baseline
 * @returns {{base: string | null, others: Other[], without: string[]}} `base`: null if the baseline has no capsule;
 *   `without`: runs that have none
 */
export function otherCode({ runs, differences }, base) {
  const values = differences.find((one) => one.path === "code.digest")?.values ?? [];
  const digestOf = (/** @type {string} */ id) => {
    const value = values[runs.indexOf(id)];
    return typeof value === "string" && DIGEST.test(value) ? value : null;
  };
  const own = digestOf(base);
  /** @type {Map<string, string[]>} */
  const others = new Map();
  /** @type {string[]} */
  const without = [];
  for (const id of values.length ? runs : []) {
    const digest = digestOf(id);
    if (digest === null) without.push(id);
    else if (digest !== own) others.set(digest, [...(others.get(digest) ?? []), id]);
  }
  return { base: own, others: [...others].map(([digest, of]) => ({ digest, runs: of })), without };
}

/** Draws the differences of the code. What has been fetched and opened stays while the page is live. */
export class CodeDifferences {
  constructor() {
    this.element = h("div.code-differences");
    this.drawn = "";
  }

  /**
   * @param {ComparisonView} comparison
   * @param {string} base
   * @param {(id: string) => string} name
   */
  draw(comparison, base, name) {
    const found = otherCode(comparison, base);
    const now = JSON.stringify([base, found, comparison.runs.map(name)]);
    if (now === this.drawn) return;
    this.drawn = now;
    fill(this.element, this.#parts(found, base, name));
  }

  /**
   * @param {ReturnType<typeof otherCode>} found
   * @param {string} base
   * @param {(id: string) => string} name
   */
  #parts(found, base, name) {
    if (!found.others.length && !found.without.length) return h("p.hint", {}, "They have the same code.");
    const names = (/** @type {string[]} */ ids) => ids.map(name).join(", ");
    const refused = refusal("researcher", document.documentElement.dataset);
    const { base: own, others, without } = found;
    return [
      own === null
        ? h("p.hint", {}, `${name(base)} has no capsule, so its code cannot be compared.`)
        : others.map(({ digest, runs }) => codeDiff(own, digest, `${names(runs)} against ${name(base)}`, refused)),
      without.length > 0 && own !== null && h("p.hint", {}, `Without a capsule: ${names(without)}.`),
    ];
  }
}
