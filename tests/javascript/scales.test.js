/** Scales: axes of parallel coordinates, shares of a range, ranges of flat curves, units of time. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { steady, timeUnit } from "../../api/lehr_api/dashboard/static/js/charts/scale.js";
import { axisOf, narrowed, shareOf } from "../../api/lehr_api/dashboard/static/js/sweep/axis.js";
import { trial, fc } from "./support.js";

/** @param {unknown[]} values */
function axis(values) {
  const trials = values.map((value, i) => trial(i + 1, { parameters: { p: value } }));
  const made = axisOf("p", (one) => one.parameters.p, trials, (value) => `<${value}>`);
  return { made, at: trials.map((one) => made.at(one)), ticks: made.ticks };
}

/** @param {number | null} a @param {number} b */
const assertClose = (a, b) => assert.ok(a !== null && Math.abs(a - b) < 1e-12, `${a} is not ${b}`);

test("numbers within a decade lie on a line from bottom to top", () => {
  const { at, ticks } = axis([1, 2, 3]);
  assert.deepEqual(at, [0, 0.5, 1]);
  assert.deepEqual(ticks, [{ at: 0, label: "<1>" }, { at: 0.5, label: "<2>" }, { at: 1, label: "<3>" }]);
});

test("numbers over more than a decade are steps of a factor", () => {
  const { at } = axis([1e-4, 1e-3, 1e-2]);
  [0, 0.5, 1].forEach((share, i) => assertClose(at[i], share));
  assertClose(axis([1, 2, 10]).at[1], 1 / 9);
});

test("zero and negative numbers are never put on a logarithm", () => {
  assert.deepEqual(axis([0, 50, 100]).at, [0, 0.5, 1]);
  assert.deepEqual(axis([-100, 0, 100]).at, [0, 0.5, 1]);
});

test("equal values, and a single one, lie in the middle", () => {
  assert.deepEqual(axis([3, 3]).at, [0.5, 0.5]);
  assert.deepEqual(axis([0]).at, [0.5]);
  assert.deepEqual(axis(["adamw", "adamw"]).at, [0.5, 0.5]);
  assert.deepEqual(axis([3, 3]).ticks, [{ at: 0.5, label: "<3>" }]);
});

test("values that are not finite lie in a strip above the numbers, which keep their order", () => {
  const { at, ticks } = axis([3.8, NaN, 12.3, 4, Infinity]);
  assert.deepEqual([at[0], at[1], at[4]], [0, 1, 1]);
  assert.ok((at[3] ?? 1) > 0 && (at[3] ?? 1) < (at[2] ?? 0) && (at[2] ?? 1) < 1, `${at}`);
  assert.deepEqual(ticks.at(-1), { at: 1, label: "<NaN>, <Infinity>" });
  assert.deepEqual(axis([7.041, 5, 7.075]).ticks.map(({ label }) => label), ["<5>", "<7.041>"]);
  assert.deepEqual(axis([2, NaN]).ticks.map(({ label }) => label), ["<2>", "<NaN>"]);
});

test("an arrow key first leaves out the values that are not finite alone, then a tenth of the axis", () => {
  const { at, made } = axis([3.8, NaN, 12.3]);
  assert.deepEqual(at.map((share) => (share ?? 0) <= narrowed([0, 1], false, made.top)[1]), [true, false, true]);
  assert.deepEqual([narrowed([0, 1], false, 1), narrowed([0, 1], true, made.top), narrowed([0.5, 0.6], true, 1)], [[0, 0.9], [0.1, 1], [0.5, 0.6]]);
});

test("a trial without the value has no place", () => {
  assert.deepEqual(axis([1, null, undefined, 2]).at, [0, null, null, 1]);
  assert.equal(axis([]).made.ticks.length, 0);
});

test("names lie in their order, apart from each other", () => {
  const { at, ticks } = axis(["muon", "adamw", "adamw8bit"]);
  assert.deepEqual(at, [1, 0, 0.5]);
  assert.deepEqual(ticks.map((tick) => tick.label), ["adamw", "adamw8bit", "muon"]);
  assert.deepEqual(axis([true, false]).at, [1, 0]);
  assert.deepEqual(axis([[0.9, 0.95], [0.9, 0.99]]).at, [0, 1]);
});

test("numbers beside names are names", () => {
  assert.deepEqual(axis([16, "auto", 8]).at, [0.5, 0, 1]);
});

test("many numbers have three ticks, the middle one where the axis has its middle", () => {
  const line = axis([1, 2, 3, 4, 5, 6, 7, 8, 9]).ticks;
  assert.deepEqual(line.map((tick) => tick.label), ["<1>", "<5>", "<9>"]);
  const factors = axis([1, 2, 4, 8, 16, 32, 64, 128, 256]).ticks;
  assert.deepEqual(factors.map((tick) => tick.label), ["<1>", "<16>", "<256>"]);
  assertClose(factors[1].at, 0.5);
});

test("places keep the order of the numbers and stay on the axis", () => {
  const numbers = fc.array(fc.double({ min: -1e9, max: 1e9, noNaN: true }), { minLength: 1, maxLength: 20 });
  fc.assert(
    fc.property(numbers, (values) => {
      const { at } = axis(values);
      at.forEach((place, i) => {
        assert.ok(place !== null && place >= -1e-9 && place <= 1 + 1e-9, `${place}`);
        at.forEach((other, j) => assert.ok(!(values[i] < values[j]) || (place ?? 0) <= (other ?? 0) + 1e-12));
      });
    }),
  );
});

test("a share of a range is a logarithm from a factor of four on", () => {
  assert.equal(shareOf(2, [1, 2, 3]), 0.5);
  assertClose(shareOf(1e-3, [1e-4, 1e-3, 1e-2]), 0.5);
  assert.equal(shareOf(5, [5, 5]), 0.5);
  assert.equal(shareOf(0, [0, 10]), 0);
  assert.equal(shareOf("a", ["a", 1]), null);
  assert.equal(shareOf(1, [1, "a"]), null);
});

test("a flat curve gets a range around it, and others their own", () => {
  assert.deepEqual([steady(5, 5), steady(-5, -5)], [[4.5, 5.5], [-5.5, -4.5]]);
  assert.deepEqual(steady(5, 5.00001)?.map((one) => Math.round(one * 10)), [45, 55]);
  assert.deepEqual([steady(5, 6), steady(0, 0)], [null, null]);
});

test("a time axis has the largest unit that leaves two of them", () => {
  assert.deepEqual([10, 120, 121, 7200, 7201, 172800, 172801].map((longest) => timeUnit(longest)[1].trim()), ["s", "s", "m", "m", "h", "h", "d"]);
  assert.deepEqual([10, 300, 10000, 1e6].map((longest) => timeUnit(longest)[0]), [1, 60, 3600, 86400]);
});
