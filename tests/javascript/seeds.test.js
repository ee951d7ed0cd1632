/** Lines of groups, and the list beside the cursor. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Chart } from "../../api/lehr_api/dashboard/static/js/charts/chart.js";
import { around, asExact, roomFor } from "../../api/lehr_api/dashboard/static/js/charts/tip.js";
import { tracesOf } from "../../api/lehr_api/dashboard/static/js/charts/traces.js";
import { curve, fc } from "./support.js";

const mean = { ...curve([[1, 4], [2, 3]]), low: [3, 2], high: [5, 4], members: 2, whole: [true, false] };
/** @type {any} */
const line = { run: "a", label: "a", colour: "#000", dash: "solid", curve: mean };
const look = /** @type {any} */ ({ band: true });

test("a mean is thin where not all of its runs have a value", () => {
  const [thin, main] = tracesOf(line, { ...look, band: false }, 1);
  assert.deepEqual([thin.y, main.y], [[4, 3], [4, NaN]]);
  assert.ok((thin.size ?? 9) < (main.size ?? 0));
});

test("the band of a mean is drawn, or of many only while its line is the nearest", () => {
  const bands = (/** @type {boolean} */ near) => tracesOf(line, look, 1, near).filter(({ kind }) => kind === "band").map((one) => [one.low, one.y, one.run, one.near]);
  assert.deepEqual([bands(false), bands(true)], [[[[3, 2], [5, 4], "a", false]], [[[3, 2], [5, 4], "a", true]]]);
});

test("a deviation has the decimals of its mean", () => {
  assert.deepEqual([asExact("7.643", 0.036), asExact("−1.20", 0.5), asExact("31.2k tok/s", 81), asExact("1.0e-3", 1e-4)], ["0.036", "0.50", null, null]);
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
