/** The list of values beside the cursor: those around the pointer, and how many others there are. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Chart } from "../../api/lehr_api/dashboard/static/js/charts/chart.js";
import { around } from "../../api/lehr_api/dashboard/static/js/charts/tip.js";
import { curve, fc } from "./support.js";

/** @param {number} count */
const values = (count) => Array.from({ length: count }, (_, i) => ({ line: { run: `r${i}` } }));

test("a short list has every value", () => {
  assert.deepEqual(around(values(12), "r11"), { better: 0, shown: values(12), more: 0 });
  assert.deepEqual(around([], null), { better: 0, shown: [], more: 0 });
});

test("a long list has the values around the line under the pointer, and counts the others", () => {
  const { better, shown, more } = around(values(40), "r20");
  assert.deepEqual([better, shown.length, more], [14, 12, 14]);
  assert.ok(shown.some(({ line }) => line.run === "r20"));
  assert.deepEqual(around(values(40), null).shown[0].line.run, "r0");
});

test("no value is left out without being counted", () => {
  fc.assert(fc.property(fc.nat({ max: 60 }), fc.nat({ max: 60 }), (count, at) => {
    const { better, shown, more } = around(values(count), `r${at}`);
    assert.equal(better + shown.length + more, count);
    assert.ok(better >= 0 && more >= 0);
    if (at < count) assert.ok(shown.some(({ line }) => line.run === `r${at}`));
  }));
});

test("the best value is first by the goal that the server gives", () => {
  const first = (/** @type {any} */ goal) => Chart.prototype.values.call(/** @type {any} */ ({ lines: [0.2, 0.7].map((y) => ({ curve: curve([[1, y]]) })), goal }), 1)[0].value;
  assert.deepEqual(["maximize", "minimize", null].map(first), [0.7, 0.2, 0.2]);
});
