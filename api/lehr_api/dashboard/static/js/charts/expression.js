/** Metrics computed from others: `train/loss - val/loss`, `exp(val/loss)`, `(a + b) / 2`. */

import { nearest } from "../nearest.js";
import { indexAt } from "./points.js";
/** @import { Curve } from "./points.js" */

/**
 * @typedef {{metrics: string[], value: (of: (metric: string) => number) => number}} Expression
 */

/** @type {Record<string, (v: number) => number>} */
const FUNCTIONS = { exp: Math.exp, log: Math.log, log2: Math.log2, log10: Math.log10, sqrt: Math.sqrt, abs: Math.abs };
/** Those that bind least are first. @type {Record<string, (a: number, b: number) => number>[]} */
const OPERATORS = [{ "+": (a, b) => a + b, "-": (a, b) => a - b }, { "*": (a, b) => a * b, "/": (a, b) => a / b }];
// A slash between names belongs to a metric; a division has spaces around it, or follows a bracket or a number.
const TOKEN = /\s*(?:(\d+\.?\d*(?:e[-+]?\d+)?|\.\d+)|([A-Za-z_][\w.]*(?:\/[\w.]+)*)|([-+*/()]))/y;

/** Whether a text is a computation, not the plain name of a metric. @param {string} text */
export const isExpression = (text) => /[-+*()]|\s\/\s/.test(text.trim()) && /[a-z]/i.test(text);

/** The metrics and expressions of one chart: `train/loss, val/loss`. @param {string} name */
export const partsOf = (name) => name.split(",").map((part) => part.trim()).filter(Boolean);

/**
 * Return a text with each pattern, such as `weight_norm/*.attn.q`, replaced by the metrics that it matches: they are
 * one chart. A `*` that matches none multiplies.
 *
 * @param {string} text
 * @param {string[]} names all metrics
 */
export const spread = (text, names) => !text.includes("*") ? text : partsOf(text).flatMap((part) => {
  const pattern = new RegExp(`^${part.replace(/[^\w*/ ]/g, "\\$&").replaceAll("*", ".*")}$`);
  const matches = names.filter((name) => part.includes("*") && pattern.test(name));
  return matches.length ? matches : [part];
}).join(", ");

/** Whether a chart is more than one metric as it was logged. @param {string} name */
export const isComputed = (name) => isExpression(name) || partsOf(name).length > 1;

/** @param {string} text @returns {string[]} */
function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  const whole = text.trim();
  while (TOKEN.lastIndex < whole.length) {
    const at = TOKEN.lastIndex;
    const match = TOKEN.exec(whole);
    if (!match) throw new Error(`"${whole.slice(at).trim()}" is not a metric, a number or one of + - * / ( ).`);
    found.push(match[1] ?? match[2] ?? match[3]);
  }
  return found;
}

/** @param {string} text @returns {Expression} @throws {Error} in words, if it cannot be read */
export function parseExpression(text) {
  const list = tokens(text);
  const metrics = new Set();
  let at = 0;
  /** @typedef {(of: (metric: string) => number) => number} Value */

  /** @returns {Value} */
  const atom = () => {
    const token = list[at];
    at += 1;
    if (token === undefined) throw new Error("It ends too early.");
    if (token === "-") {
      const inner = atom();
      return (of) => -inner(of);
    }
    if (token === "(") {
      const inner = sum();
      if (list[at] !== ")") throw new Error("A bracket is not closed.");
      at += 1;
      return inner;
    }
    if (/^[\d.]/.test(token)) return () => Number(token);
    if (!/^[A-Za-z_]/.test(token)) throw new Error(`"${token}" is where a metric or a number should be.`);
    if (list[at] === "(") {
      const function_ = FUNCTIONS[token];
      if (!function_) throw new Error(`There is no function ${token}. Functions: ${Object.keys(FUNCTIONS).join(", ")}`);
      const inner = atom();
      return (of) => function_(inner(of));
    }
    metrics.add(token);
    return (of) => of(token);
  };
  /** Read operands between operators of a rank, from the left. @param {number} [rank] @returns {Value} */
  function sum(rank = 0) {
    if (rank === OPERATORS.length) return atom();
    let left = sum(rank + 1);
    while (list[at] in OPERATORS[rank]) {
      const act = OPERATORS[rank][list[at]];
      at += 1;
      const [a, b] = [left, sum(rank + 1)];
      left = (of) => act(a(of), b(of));
    }
    return left;
  }

  const value = sum();
  if (at < list.length) throw new Error(`"${list[at]}" is where an operator should be.`);
  if (!metrics.size) throw new Error("It names no metric.");
  return { metrics: [...metrics], value };
}

/**
 * Return the curve of an expression, at the steps of its sparsest metric that all have reached.
 *
 * @param {Expression} expression
 * @param {(metric: string) => Curve | undefined} curveOf
 * @returns {Curve | null} null if the run lacks one of the metrics
 */
export function computed(expression, curveOf) {
  const curves = new Map(expression.metrics.map((name) => [name, curveOf(name)]));
  const known = /** @type {Curve[]} */ ([...curves.values()].filter((curve) => curve?.step.length));
  if (known.length < curves.size) return null;
  const sparsest = known.reduce((a, b) => (b.step.length < a.step.length ? b : a));
  const first = Math.max(...known.map((curve) => curve.step[0]));
  const last = Math.min(...known.map((curve) => curve.step[curve.step.length - 1]));
  /** @type {Curve} */
  const found = { step: [], x: [], y: [], low: null, high: null, raw: null, superseded: [] };
  sparsest.step.forEach((step, i) => {
    if (step < first || step > last) return;
    found.step.push(step);
    found.x.push(sparsest.x[i]);
    found.y.push(expression.value((name) => {
      const curve = /** @type {Curve} */ (curves.get(name));
      return curve.y[indexAt(curve.step, step)];
    }));
  });
  return found;
}

/** The metrics that a chart needs. @param {string} name @returns {string[]} */
export const metricsIn = (name) => [
  ...new Set(partsOf(name).flatMap((part) => (isExpression(part) ? parseExpression(part).metrics : [part]))),
];

/**
 * Return which metric of an expression no run of the page has, in words; null if there is none.
 *
 * @param {string} text
 * @param {string[]} names all metrics
 */
export function unknownIn(text, names) {
  const unknown = metricsIn(text).find((name) => !names.includes(name));
  return unknown === undefined ? null : `No run here has ${unknown}. ${nearest(unknown, names)}`.trim();
}
