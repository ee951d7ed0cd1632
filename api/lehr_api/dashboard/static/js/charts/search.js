/** Find charts by a pattern, and add charts of several metrics or of what is computed from them. */

import { fill, h, input } from "../dom.js";
import { read, write } from "../urlstate.js";
import { isComputed, parseExpression, partsOf, unknownIn } from "./expression.js";

/** @param {string} text @returns {string | null} what is wrong with it */
export function problemOf(text) {
  try {
    for (const part of partsOf(text)) parseExpression(part);
    return null;
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/**
 * Return the charts to show: the added ones whatever is looked for, and the metrics that match.
 *
 * @param {string[]} added
 * @param {string[]} names
 * @param {RegExp | null} pattern
 */
export const chartsOf = (added, names, pattern) => [...added, ...names.filter((name) => pattern?.test(name) ?? true)];

export class Search {
  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    /** All metrics of the page. @type {string[]} */
    this.names = [];
    this.pattern = read("metrics") ?? "";
    /** @type {string[]} */
    this.expressions = (read("expr") ?? "")
      .split(";").map((one) => one.trim()).filter((one) => isComputed(one) && problemOf(one) === null);
    this.counted = h("span.dim");
    this.problem = h("span.problem", { role: "status" });
    this.chips = h("span");
    const pattern = input({ type: "search", placeholder: "find charts: regex",
      "aria-label": "Search charts", value: this.pattern, spellcheck: "false", oninput: () => {
      this.pattern = pattern.value;
      write({ metrics: this.pattern });
      this.problem.textContent = this.#expression() === null && this.pattern ? "not a regular expression" : "";
      onChange();
    } });
    const expression = input({
      placeholder: "train/loss, val/loss", "aria-label": "Add a chart of an expression",
      spellcheck: "false",
    });
    const add = (/** @type {Event} */ event) => {
      event.preventDefault();
      const text = expression.value.trim();
      if (!text) return;
      const problem = isComputed(text)
        ? problemOf(text) ?? unknownIn(text, this.names)
        : "One metric has its chart already. Write several with commas, or compute with + - * / ( ).";
      this.problem.textContent = problem ?? "";
      if (problem !== null) return;
      expression.value = "";
      this.#set([...new Set([...this.expressions, text])]);
    };
    this.element = h(
      "div.bar.chart-search", {}, pattern, this.counted,
      h("form", { onsubmit: add }, expression, " ", h("button", {}, "Add chart")), this.chips, this.problem,
    );
    this.#drawChips();
  }

  #expression() {
    try {
      return new RegExp(this.pattern, "i");
    } catch {
      return null;
    }
  }

  /** @param {string[]} expressions */
  #set(expressions) {
    this.expressions = expressions;
    write({ expr: expressions.join(";") });
    this.#drawChips();
    this.onChange();
  }

  #drawChips() {
    fill(this.chips, this.expressions.map((one) => h(
      "button.quiet",
      { key: one, type: "button", "aria-label": `Remove the chart ${one}`, onclick: () => this.#set(
        this.expressions.filter((other) => other !== one)
      ) },
      `${one} ×`,
    )));
  }

  shown() {
    return chartsOf(this.expressions, this.names, this.#expression());
  }

  /** @param {number} shown @param {number} all */
  count(shown, all) {
    this.counted.textContent = this.pattern ? `${shown} of ${all}` : `${all} charts`;
  }
}
