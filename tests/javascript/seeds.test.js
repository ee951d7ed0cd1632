/** Means of groups, and the list beside the cursor. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Chart } from "../../api/lehr_api/dashboard/static/js/charts/chart.js";
import { bySeeds, inGroups, meanCurve } from "../../api/lehr_api/dashboard/static/js/charts/lines.js";
import { around, roomFor } from "../../api/lehr_api/dashboard/static/js/charts/tip.js";
import { tracesOf } from "../../api/lehr_api/dashboard/static/js/charts/traces.js";
import { curve, fc } from "./support.js";

/** @param {string} run @param {[number, number][]} points @returns {any} */
const line = (run, points = [[1, 1]]) => ({ run, label: run, colour: "#000", dash: "solid", cut: true, curve: curve(points) });

test("the mean is taken at each step, with the lowest and highest around it", () => {
  const mean = meanCurve([curve([[1, 2], [2, 4]]), curve([[1, 4], [2, 8]])]);
  assert.deepEqual([mean.step, mean.y, mean.low, mean.high], [[1, 2], [3, 6], [2, 4], [4, 8]]);
  assert.deepEqual(meanCurve([curve([[1, 1]]), curve([[1, 2]]), curve([[1, 6]])]).y, [3]);
});

test("a curve that begins late or ends early counts where it has a value, and the mean is not whole there", () => {
  const mean = meanCurve([curve([[1, 1], [2, 1], [3, 1]]), curve([[2, 3], [3, 3], [4, 3]])]);
  assert.deepEqual([mean.step, mean.y, mean.whole], [[1, 2, 3, 4], [1, 2, 2, 3], [false, true, true, false]]);
  assert.deepEqual(meanCurve([curve([[1, 1]]), curve([[2, 1]])]).step, [1, 2]);
});

test("a coarser curve counts with what is between its points: a mean of falling curves has no stairs", () => {
  const mean = meanCurve([curve([[1, 1], [2, 1], [3, 1], [4, 1]]), curve([[1, 3], [4, 6]])]);
  assert.deepEqual([mean.step, mean.y], [[1, 2, 3, 4], [2, 2.5, 3, 3.5]]);
});

test("a value that is not finite has no part in the mean, which is thin there", () => {
  const mean = meanCurve([curve([[1, 5], [2, NaN]]), curve([[1, 3], [2, 3]])]);
  assert.deepEqual([mean.y, mean.whole], [[4, 3], [true, false]]);
  const [thin, main] = tracesOf({ ...line("a"), cut: false, curve: mean }, /** @type {any} */ ({ band: false }), 1);
  assert.deepEqual([thin.y, main.y], [[4, 3], [4, NaN]]);
  assert.ok((thin.line?.width ?? 9) < (main.line?.width ?? 0));
});

test("the label of a mean says who diverged or ended before the others", () => {
  const lines = [line("a", [[1, 1], [900, 1]]), line("b", [[1, 1], [60, NaN]]), line("c", [[1, 1], [61, Infinity], [900, NaN]]), { ...line("d", [[1, 1], [400, 1]]), ended: true }, line("e", [[1, 1], [850, 1]]), line("f", [])];
  assert.deepEqual(bySeeds(lines, () => "adamw", "runs").map(({ label }) => label), ["adamw, mean of 5 runs, 2 diverged at steps 60 to 61, 1 ended at step 400"]);
});

test("the mean of equal curves is the curve, and no mean leaves its range", () => {
  const values = fc.array(fc.double({ min: -1e6, max: 1e6, noNaN: true }).map((value) => value + 0), { minLength: 1, maxLength: 20 });
  fc.assert(
    fc.property(values, values, (a, b) => {
      const one = curve(a.map((value, i) => [i, value]));
      assert.deepEqual(meanCurve([one, one]).y, a);
      const mean = meanCurve([one, curve(b.map((value, i) => [i, value]))]);
      assert.equal(mean.step.length, Math.max(a.length, b.length));
      assert.equal(mean.whole?.filter(Boolean).length, Math.min(a.length, b.length));
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

test("groups are in the order of their first runs", () => {
  assert.deepEqual([...inGroups([3, 1, 4, 5], (n) => (n % 2 ? "odd" : "even"))], [["odd", [3, 1, 5]], ["even", [4]]]);
});

test("runs of a group are one line with their mean and range, under the group's name", () => {
  const groups = /** @type {Record<string, string>} */ ({ a: "lr 1", b: "lr 2", c: "lr 1" });
  const found = bySeeds([line("a", [[1, 1], [2, 1]]), line("b", [[1, 5], [2, 5]]), line("c", [[1, 3], [2, 3]])], (one) => groups[one.run], "runs");
  assert.deepEqual(found.map((one) => one.label), ["lr 1, mean of 2 runs", "lr 2, one run"]);
  assert.deepEqual([found[0].curve.y, found[0].curve.low, found[0].curve.high], [[2, 2], [1, 1], [3, 3]]);
});

/** @param {number} count */
const values = (count) => Array.from({ length: count }, (_, i) => ({ line: { run: `r${i}` } }));

test("a short list has every value", () => {
  assert.deepEqual(around(values(12), "r11"), { better: 0, shown: values(12), more: 0 });
  assert.deepEqual(around([], null), { better: 0, shown: [], more: 0 });
});

test("a long list has the values around the line under the pointer, and counts the others", () => {
  const { better, shown, more } = around(values(40), "r20");
  assert.deepEqual([better, shown.length, more], [14, 12, 14]);
  assert.ok(shown.some((value) => value.line.run === "r20"));
  assert.deepEqual(around(values(40), null).shown[0].line.run, "r0");
  const low = around(values(40), "r20", roomFor(220));
  assert.deepEqual([low.better, low.shown.length, low.more], [16, 8, 16]);
  assert.deepEqual([300, 1000, 20].map(roomFor), [12, 12, 1]);
});

test("no value is left out without being counted", () => {
  fc.assert(fc.property(fc.nat({ max: 60 }), fc.nat({ max: 60 }), (count, at) => {
    const { better, shown, more } = around(values(count), `r${at}`);
    assert.equal(better + shown.length + more, count);
    assert.ok(better >= 0 && more >= 0);
    if (at < count) assert.ok(shown.some((value) => value.line.run === `r${at}`));
  }));
});

test("the best value is first by the goal that the server gives", () => {
  const first = (/** @type {any} */ goal) => Chart.prototype.values.call(/** @type {any} */ ({ lines: [0.2, 0.7].map((y) => ({ curve: curve([[1, y]]) })), goal }), 1)[0].value;
  assert.deepEqual(["maximize", "minimize", null].map(first), [0.7, 0.2, 0.2]);
});
