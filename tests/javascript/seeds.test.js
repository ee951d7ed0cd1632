/** Runs that differ in their seed alone, drawn as one curve. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { bySeeds, meanCurve } from "../../api/lehr_api/dashboard/static/js/charts/seeds.js";
import { curve, fc } from "./support.js";

/** @param {string} run @param {[number, number][]} points @returns {any} */
const line = (run, points = [[1, 1]]) => ({ run, label: run, colour: "#000", dash: "solid", cut: true, curve: curve(points) });

test("the mean is taken at each step, with the lowest and highest around it", () => {
  const mean = meanCurve([curve([[1, 2], [2, 4]]), curve([[1, 4], [2, 8]])]);
  assert.deepEqual([mean.step, mean.y, mean.low, mean.high], [[1, 2], [3, 6], [2, 4], [4, 8]]);
  assert.deepEqual(meanCurve([curve([[1, 1]]), curve([[1, 2]]), curve([[1, 6]])]).y, [3]);
});

test("only steps that every curve reaches count", () => {
  const mean = meanCurve([curve([[1, 1], [2, 1], [3, 1]]), curve([[2, 3], [3, 3], [4, 3]])]);
  assert.deepEqual([mean.step, mean.y], [[2, 3], [2, 2]]);
  assert.deepEqual(meanCurve([curve([[1, 1]]), curve([])]).step, []);
  assert.deepEqual(meanCurve([curve([[1, 1]]), curve([[2, 1]])]).step, []);
});

test("a coarser curve counts with its newest point", () => {
  const mean = meanCurve([curve([[1, 1], [2, 1], [3, 1], [4, 1]]), curve([[1, 3], [4, 5]])]);
  assert.deepEqual([mean.step, mean.y], [[1, 2, 3, 4], [2, 2, 2, 3]]);
});

test("a value that is not finite is not averaged away", () => {
  const mean = meanCurve([curve([[1, NaN]]), curve([[1, 3]])]);
  assert.ok(Number.isNaN(mean.y[0]));
});

test("the mean of equal curves is the curve, and no mean leaves its range", () => {
  const values = fc.array(fc.double({ min: -1e6, max: 1e6, noNaN: true }).map((value) => value + 0), { minLength: 1, maxLength: 20 });
  fc.assert(
    fc.property(values, values, (a, b) => {
      const one = curve(a.map((value, i) => [i, value]));
      assert.deepEqual(meanCurve([one, one]).y, a);
      const mean = meanCurve([one, curve(b.map((value, i) => [i, value]))]);
      assert.equal(mean.step.length, Math.min(a.length, b.length));
      mean.y.forEach((value, i) => assert.ok(value >= (mean.low?.[i] ?? 0) - 1e-9 && value <= (mean.high?.[i] ?? 0) + 1e-9));
    }),
  );
});

test("lines of a group become one, in the order of their first", () => {
  const groups = /** @type {Record<string, string | null>} */ ({ a: "lr 1", b: null, c: "lr 1", d: "lr 2" });
  const lines = bySeeds(["a", "b", "c", "d"].map((run) => line(run)), (one) => groups[one.run]);
  assert.deepEqual(lines.map((one) => one.label), ["lr 1, mean of 2 seeds", "b", "d"]);
  assert.equal(lines[0].run, "a");
  assert.equal(lines[0].cut, false);
  assert.equal(lines[2].cut, true);
});
