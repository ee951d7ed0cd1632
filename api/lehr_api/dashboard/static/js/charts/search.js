/** One field that finds charts by a pattern, and adds charts of several metrics or of what is computed from them. */

import { fill, h, input } from "../dom.js";
import { read, write } from "../urlstate.js";
import { isComputed, parseExpression, partsOf, spread, unknownIn } from "./expression.js";

/** @param {string} text @returns {string | null} what is wrong with it */
export function problemOf(text) {
  try {
    for (const part of partsOf(text)) parseExpression(part);
    return null;
  } catch (error) {
    return /** @type {Error} */ (error).message;
  }
}

/** The most completions. */
const MOST = 20;

/**
 * Return what a text in the field means: a chart to add, or a pattern that charts are found by. A computation that is
 * not complete yet finds all charts.
 *
 * @param {string} text
 * @param {string[]} names all metrics
 * @returns {{adds: boolean, pattern: RegExp | null, problem: string | null}} `problem`: why it is neither
 */
export function meaningOf(text, names) {
  const [whole, several] = [spread(text, names), isComputed(text)];
  const problem = several ? problemOf(whole) ?? unknownIn(whole, names) : "not a regular expression";
  if (problem === null) return { adds: true, pattern: null, problem };
  try {
    const pattern = new RegExp(text, "i");
    const finds = !several || names.some((name) => pattern.test(name));
    return { adds: false, pattern: finds ? pattern : null, problem: finds ? null : problem };
  } catch {
    return { adds: false, pattern: null, problem };
  }
}

/** Return what may complete the last metric of a text. @param {string} text @param {string[]} names all metrics */
export function completions(text, names) {
  const [, before = "", last = ""] = /^(.*(?:[,(]| [-+*/] )\s*)?(.*)$/.exec(text) ?? [];
  return last ? names.filter((name) => name.includes(last)).slice(0, MOST).map((name) => `${before}${name}`) : [];
}

export class Search {
  /** @param {() => void} onChange @param {string} [first] the charts to begin with, where the address names none */
  constructor(onChange, first = "") {
    this.onChange = onChange;
    this.first = first.split(";");
    /** All metrics of the page. @type {string[]} */
    this.names = [];
    this.text = read("metrics") ?? "";
    /** @type {string[]} */
    this.expressions = (read("expr") ?? first)
      .split(";").map((one) => one.trim()).filter(isComputed);
    this.problem = h("span.problem", { role: "status" });
    this.chips = h("span");
    const offered = h("datalist", { id: "chart-names" });
    const field = input({ type: "search", placeholder: "find: loss   add: a, b", list: "chart-names",
      "aria-label": "Find or add charts", value: this.text, spellcheck: "false", oninput: () => {
      this.text = field.value;
      const { adds, problem } = meaningOf(this.text.trim(), this.names);
      this.problem.textContent = adds ? "Enter adds the chart" : isComputed(this.text) ? "" : problem;
      write({ metrics: adds ? "" : this.text });
      fill(offered, completions(this.text, this.names).map((value) => h("option", { key: value, value })));
      onChange();
    } });
    const add = (/** @type {Event} */ event) => {
      event.preventDefault();
      const text = this.text.trim();
      const { adds, problem } = meaningOf(text, this.names);
      this.problem.textContent = problem ?? "";
      if (!adds) return;
      this.text = field.value = "";
      write({ metrics: "" });
      this.#set([...new Set([...this.expressions, text])]);
    };
    this.element = h(
      "form.chart-search", { onsubmit: add }, field, offered, this.chips, this.problem,
    );
    this.#drawChips();
  }

  /** @param {string[]} expressions */
  #set(expressions) {
    this.expressions = expressions;
    write({ expr: expressions.join(";") });
    this.#drawChips();
    this.onChange();
  }

  #drawChips() {
    fill(this.chips, this.expressions.filter((one) => !this.first.includes(one)).map((one) => h(
      "button.quiet",
      { key: one, type: "button", "aria-label": `Remove the chart ${one}`, onclick: () => this.#set(
        this.expressions.filter((other) => other !== one)
      ) },
      `${one} ×`,
    )));
  }

  /**
   * Return the charts to show: the added ones whatever is looked for, and the metrics that match; if nothing is looked
   * for, those that are not in an added chart of a family.
   */
  shown() {
    const known = this.expressions.filter((one) => meaningOf(one, this.names).adds);
    const text = this.text.trim();
    const { pattern } = meaningOf(text, this.names);
    const inFamilies = partsOf(spread(known.filter((one) => one.includes("*")).join(), this.names));
    const isShown = (/** @type {string} */ name) => (text ? pattern?.test(name) ?? true : !inFamilies.includes(name));
    return [...known, ...this.names.filter(isShown)];
  }
}
