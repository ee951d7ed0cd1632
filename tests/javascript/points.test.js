/** Points of a curve: in order of steps, each once, however they arrive. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { continued, deviationAt, indexAt, joined, points, reaches, xOfStep } from "../../api/lehr_api/dashboard/static/js/charts/points.js";
import { curve, fc } from "./support.js";

const steps = fc.uniqueArray(fc.integer({ min: 0, max: 1000 }), { maxLength: 60 }).map((found) => found.sort((a, b) => a - b));

/** @param {any} one */
const pairs = (one) => one.step.map((/** @type {number} */ step, /** @type {number} */ i) => [step, one.y[i]]);

test("values of the wire become numbers, and what is not finite a gap or an infinity", () => {
  const read = points({ step: [1, 2, 3], x: [1, 2, 3], y: [1.5, "NaN", "Infinity"], low: null, high: [2, "NaN", 3], goal: "maximize" });
  assert.deepEqual(read, { step: [1, 2, 3], x: [1, 2, 3], y: [1.5, NaN, Infinity], low: null, high: [2, NaN, 3], goal: "maximize", speed: undefined, members: undefined, whole: undefined, dropouts: undefined });
});

test("a mean says where not all of its runs have a value, also behind the curve that it was forked from", () => {
  const mean = points({ step: [5, 6], x: [5, 6], y: [3, 2], low: [2, 2], high: [4, 2], members: 3, counts: [3, 2], dropouts: "1 ended at step 5" });
  assert.deepEqual([mean.members, mean.whole, mean.dropouts, deviationAt(mean, 0)], [3, [true, false], "1 ended at step 5", 1]);
  assert.deepEqual(continued(curve([[1, 9], [2, 8]]), { ...mean, raw: null, superseded: [] })?.whole, [true, true, true, false]);
});

test("new points come after the old ones, and the goal stays", () => {
  assert.equal(joined(curve([[1, 10]]), { ...curve([[3, 30]]), goal: "maximize" }).goal, "maximize");
  assert.deepEqual(pairs(joined(curve([[1, 10], [2, 20]]), curve([[3, 30]]))), [[1, 10], [2, 20], [3, 30]]);
});

test("a step that comes again replaces what was there, and all after it", () => {
  const old = curve([[1, 10], [2, 20], [3, 30]]);
  assert.deepEqual(pairs(joined(old, curve([[2, 21]]))), [[1, 10], [2, 21]]);
  assert.deepEqual(pairs(joined(old, curve([[0, 0], [5, 50]]))), [[0, 0], [5, 50]]);
  assert.deepEqual(pairs(old), [[1, 10], [2, 20], [3, 30]]);
});

test("nothing new changes nothing", () => {
  const old = curve([[1, 10]]);
  assert.equal(joined(old, curve([])), old);
  assert.deepEqual(pairs(joined(curve([]), curve([[4, 1]]))), [[4, 1]]);
});

test("a range is kept where only one of both has one", () => {
  const banded = { ...curve([[1, 10]]), low: [9], high: [11] };
  assert.deepEqual(joined(banded, curve([[2, 20]])).low, [9, 20]);
  assert.deepEqual(joined(curve([[1, 10]]), { ...curve([[2, 20]]), low: [19], high: [21] }).high, [10, 21]);
  assert.equal(joined(curve([[1, 10]]), curve([[2, 20]])).low, null);
});

test("a curve joined of two parts is the whole, wherever it was cut and however far they overlap", () => {
  fc.assert(
    fc.property(steps, fc.nat(60), fc.nat(60), (all, cut, back) => {
      const whole = all.map((step) => /** @type {[number, number]} */ ([step, step * 2]));
      const end = Math.min(cut, whole.length);
      const old = curve(whole.slice(0, end));
      const fresh = curve(whole.slice(Math.max(0, end - back)));
      assert.deepEqual(pairs(joined(old, fresh)), whole);
    }),
  );
});

test("steps ascend and stand once after any two curves were joined", () => {
  fc.assert(
    fc.property(steps, steps, (a, b) => {
      const { step, x, y } = joined(curve(a.map((one) => [one, 0])), curve(b.map((one) => [one, 1])));
      assert.ok(step.every((one, i) => i === 0 || step[i - 1] < one));
      assert.equal(x.length, step.length);
      assert.equal(y.length, step.length);
      for (const one of b) assert.ok(step.includes(one));
    }),
  );
});

test("the point at or before a place is found, or the first", () => {
  assert.equal(indexAt([1, 3, 5], 0), 0);
  assert.equal(indexAt([1, 3, 5], 3), 1);
  assert.equal(indexAt([1, 3, 5], 4.9), 1);
  assert.equal(indexAt([1, 3, 5], 99), 2);
  fc.assert(
    fc.property(steps.filter((all) => all.length > 0), fc.integer({ min: -10, max: 1010 }), (all, x) => {
      const plain = all.findLastIndex((step) => step <= x);
      assert.equal(indexAt(all, x), Math.max(0, plain));
    }),
  );
});

test("a step lies between the points around it, and nowhere outside", () => {
  const line = { step: [10, 20, 40], x: [100, 200, 300] };
  assert.equal(xOfStep(line, 10), 100);
  assert.equal(xOfStep(line, 15), 150);
  assert.equal(xOfStep(line, 30), 250);
  assert.equal(xOfStep(line, 40), 300);
  assert.equal(xOfStep(line, 9), null);
  assert.equal(xOfStep(line, 41), null);
  assert.equal(xOfStep({ step: [], x: [] }, 1), null);
  assert.equal(xOfStep({ step: [7], x: [70] }, 7), 70);
});

test("a curve is asked only from its first point to where its next one is due", () => {
  assert.equal(reaches({ step: [] }, 0), false);
  assert.equal(reaches({ step: [10, 20] }, 9), false);
  assert.equal(reaches({ step: [10, 20] }, 10), true);
  assert.equal(reaches({ step: [10, 20] }, 30), true);
  assert.equal(reaches({ step: [10, 20] }, 31), false);
  assert.equal(reaches({ step: [10] }, 11), false);
});

test("a fork's curve begins with its parent's, up to its own first step", () => {
  const parent = curve([[1, 5], [2, 4], [3, 9], [4, 9]]);
  const own = curve([[3, 3], [4, 2]]);
  const found = continued(parent, own);
  assert.deepEqual(pairs(found), [[1, 5], [2, 4], [3, 3], [4, 2]]);
  assert.equal(found?.forkedAt, 3);
  assert.equal(continued(undefined, own), own);
  assert.equal(continued(curve([[3, 9]]), own), own);
  assert.equal(continued(parent, undefined), undefined);
  assert.deepEqual(continued(parent, curve([]))?.step, []);
});
