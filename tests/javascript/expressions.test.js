/** Metrics computed from others, ranges without outliers, ticks of logarithmic axes, settings of single charts. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { logTicks, robust } from "../../api/lehr_api/dashboard/static/js/charts/axes.js";
import { computed, isExpression, parseExpression, unknownIn } from "../../api/lehr_api/dashboard/static/js/charts/expression.js";
import { ownFromAddress, ownToAddress, rangeOf } from "../../api/lehr_api/dashboard/static/js/charts/toolbar.js";
import { curve, fc } from "./support.js";

/** @param {string} text @param {Record<string, number>} [values] */
const value = (text, values = {}) => parseExpression(text).value((name) => values[name]);

test("an expression is computed as in arithmetic", () => {
  assert.equal(value("train/loss - val/loss", { "train/loss": 3, "val/loss": 2.5 }), 0.5);
  assert.equal(value("(a + b) / 2 * 10", { a: 1, b: 2 }), 15);
  assert.equal(value("a - b - 1", { a: 5, b: 2 }), 2);
  assert.equal(value("-a * 2e1", { a: 3 }), -60);
  assert.equal(value("exp(val/loss)", { "val/loss": 0 }), 1);
  assert.equal(value("log(a*a)", { a: Math.E }), 2);
  assert.deepEqual(parseExpression("a/b + a/b - 1").metrics, ["a/b"]);
});

test("the name of a metric is no expression", () => {
  for (const name of ["train/loss", "tokens_per_s", "grad_norm/layer0", "12"]) assert.equal(isExpression(name), false, name);
  for (const text of ["a - b", "exp(a)", "a * 2", "a / b"]) assert.equal(isExpression(text), true, text);
});

test("what cannot be read is an error in words", () => {
  for (const [text, words] of [["a -", /ends too early/], ["(a", /bracket/], ["a b", /operator/], ["sin(a)", /no function sin\. Functions: exp/], ["1 + 2", /no metric/], ["a $ b", /"\$ b" is not/], ["a * / b", /metric or a number/]]) {
    assert.throws(() => parseExpression(/** @type {string} */ (text)), /** @type {RegExp} */ (words), String(text));
  }
});

test("a curve of an expression has the steps of its sparsest metric", () => {
  const curves = /** @type {Record<string, any>} */ ({ "train/loss": curve([[1, 9], [2, 8], [3, 7], [4, 6]]), "val/loss": curve([[2, 10], [4, 5], [6, 4]]) });
  const found = computed(parseExpression("train/loss - val/loss"), (name) => curves[name]);
  assert.deepEqual([found?.step, found?.y], [[2, 4], [-2, 1]]);
  assert.equal(computed(parseExpression("train/loss - other"), (name) => curves[name]), null);
});

test("a few outliers do not decide the range, and their number is known", () => {
  const usual = Array.from({ length: 200 }, (_, i) => 1 + Math.sin(i) / 10);
  assert.equal(robust([usual]), null);
  const found = robust([[...usual, 680]]);
  assert.equal(found?.outside, 1);
  assert.ok(found && found.range[0] < 0.9 && found.range[1] > 1.1 && found.range[1] < 2);
  assert.equal(robust([[1, 2, 1000]]), null);
  // Most runs have one point; those that trained on are lower, and not far.
  const short = [2.84, 2.843, 2.843, 2.811, 2.811, 2.854, 2.854].map((loss) => [loss]);
  assert.equal(robust([...short, [2.9, 1.8], [2.8, 1.86], [3, 2.03], [2.9, 2.2], [3.4, 2.58]]), null);
  assert.equal(robust([Array(100).fill(3)]), null);
});

test("a falling loss is no outlier", () => {
  const loss = Array.from({ length: 500 }, (_, i) => 3 + 9 / (1 + i / 10));
  assert.equal(robust([loss]), null);
});

test("a logarithmic axis has at least two ticks within it", () => {
  fc.assert(
    fc.property(fc.double({ min: 1e-6, max: 1e3, noNaN: true }), fc.double({ min: 1.05, max: 1e6, noNaN: true }), (low, factor) => {
      const ticks = logTicks(low, low * factor, 5);
      assert.ok(ticks.length >= 2, `${low} ${factor} ${ticks}`);
      assert.ok(ticks.length <= 20);
      for (const tick of ticks) assert.ok(tick >= low * 0.999 && tick <= low * factor * 1.001);
    }),
  );
  assert.deepEqual(logTicks(1, 1000, 5), [1, 3, 10, 30, 100, 300, 1000]);
});

test("what a chart has for itself is kept in the address", () => {
  const text = "train/loss:log,grad_norm:all:0..5";
  assert.equal(ownToAddress(ownFromAddress(text)), text);
  assert.equal(ownToAddress(new Map([["a", {}]])), "");
  // Without a word about the axis, the toolbar decides.
  assert.deepEqual(["a:log", "a:linear", "a:all"].map((one) => ownFromAddress(one).get("a")?.log), [true, false, undefined]);
  assert.deepEqual([rangeOf("2.5..4"), rangeOf("2 to 3"), rangeOf(""), rangeOf("4..2"), rangeOf("low")], [[2.5, 4], [2, 3], null, undefined, undefined]);
});

test("a metric that no run has is named, with the nearest that there is", () => {
  const names = ["train/loss", "val/loss"];
  assert.equal(unknownIn("val/loss - train/loss", names), null);
  assert.equal(unknownIn("train/loss, val/los", names), "No run here has val/los. Did you mean val/loss?");
  assert.equal(unknownIn("exp(nothing/like_it)", names), "No run here has nothing/like_it.");
});
