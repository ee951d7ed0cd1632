/** Axes and scales: ranges, ticks, units, positions. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { labels, linearTicks, logOf, scaleOf, steady, timeUnit, xAxis, yAxis } from "../../api/lehr_api/dashboard/static/js/charts/axes.js";
import { bandPath } from "../../api/lehr_api/dashboard/static/js/charts/drawing.js";
import { axisOf, narrowed } from "../../api/lehr_api/dashboard/static/js/sweep/axis.js";
import { curve, fc, trial } from "./support.js";

/** @param {number[]} values @returns {any[]} */
const lines = (values) => [{ run: "r", curve: curve(values.map((value, i) => [i, value])) }];
/** @param {string} name @param {number[]} values @param {any} [own] */
const yOf = (name, values, own = {}, log = false) => yAxis(name, lines(values), [{ y: values }], log, own);
/** @param {{ticks: {text: string}[]}} axis */
const texts = ({ ticks }) => ticks.map(({ text }) => text);

test("ticks are round, inside of the range, and about as many as asked for", () => {
  assert.deepEqual(linearTicks(0, 10, 5), [0, 2, 4, 6, 8, 10]);
  assert.deepEqual(linearTicks(2.31, 2.48, 5), [2.35, 2.4, 2.45]);
  assert.deepEqual(linearTicks(1, 3, 10, 1), [1, 2, 3]);
  fc.assert(fc.property(fc.double({ min: -1e6, max: 1e6, noNaN: true }), fc.double({ min: 1e-3, max: 1e6, noNaN: true }), (low, size) => {
    const found = linearTicks(low, low + size, 5);
    assert.ok(found.length >= 1 && found.length <= 6, `${found}`);
    for (const value of found) assert.ok(value >= low - 1e-6 * size && value <= low + 1.000001 * size, `${value}`);
  }));
});

test("labels have the unit of the metric and the decimals that tell ticks apart", () => {
  assert.deepEqual(labels([2.35, 2.4, 2.45], "train/loss"), ["2.35", "2.40", "2.45"]);
  assert.deepEqual(labels([0, 5e9, 1e10], "memory/peak_bytes"), ["0B", "5GB", "10GB"]);
  assert.deepEqual(labels([0.0005, 0.001], "step_time_s"), ["0.5ms", "1.0ms"]);
  assert.deepEqual(labels([0, 0.05, 0.1], "mfu"), ["0%", "5%", "10%"]);
  assert.deepEqual(labels([0, 10000, 20000], "tokens_per_s"), ["0", "10k", "20k"]);
  assert.deepEqual(labels([-0.02, 0], "val/loss - train/loss"), ["−0.02", "0.00"]);
  assert.deepEqual(labels([0, 1e-4, 2e-4, 3e-4], "train/lr"), ["0", "1.0e-4", "2.0e-4", "3.0e-4"]);
  assert.deepEqual(labels([1e-6, 2e-6], "lr"), ["1.0e-6", "2.0e-6"]);
});

test("labels of an axis never repeat", () => {
  const names = fc.constantFrom("train/loss", "step_time_s", "memory/peak_bytes", "mfu", "tokens_per_s");
  fc.assert(fc.property(names, fc.double({ min: -1e4, max: 1e9, noNaN: true }), fc.double({ min: 1e-3, max: 1e9, noNaN: true }), (name, low, size) => {
    if (size < Math.abs(low) * 1e-4) return;
    const found = labels(linearTicks(low, low + size, 5), name);
    assert.equal(new Set(found).size, found.length, `${found}`);
  }));
});

test("steps have whole ticks, tokens prefixes, and times their unit", () => {
  assert.deepEqual(texts(xAxis(1, 3, 10, { x: "step", log: false, suffix: "" })), ["1", "2", "3"]);
  assert.deepEqual(texts(xAxis(0, 2e6, 4, { x: "tokens", log: false, suffix: "" })), ["0", "0.5M", "1.0M", "1.5M", "2.0M"]);
  assert.deepEqual(texts(xAxis(0, 2, 4, { x: "time", log: false, suffix: " h" })), ["0.0 h", "0.5 h", "1.0 h", "1.5 h", "2.0 h"]);
  const single = xAxis(60, 60, 5, { x: "step", log: false, suffix: "" });
  assert.deepEqual([single.low, single.high], [59, 61]);
  assert.ok(texts(xAxis(1, 10042, 5, { x: "step", log: true, suffix: "" })).length >= 3);
});

test("outliers are counted and left out, until they are asked for", () => {
  const values = [...Array.from({ length: 100 }, (_, i) => 1 + i / 100), 680];
  const clipped = yOf("grad_norm", values);
  assert.equal(clipped.outside, "1 outside");
  assert.ok(clipped.axis.high < 10);
  const all = yOf("grad_norm", values, { all: true });
  assert.equal(all.outside, "");
  assert.ok(all.axis.high >= 680);
});

test("a run that is far from most others does not flatten them, and is named", () => {
  const falling = (/** @type {number} */ scale) => Array.from({ length: 40 }, (_, i) => scale * (3 + 7 / (i + 1)));
  const all = [1, 1.01, 1.02, 0.99].map(falling);
  const diverged = falling(1).map((value, i) => (i < 20 ? value : 50 * i));
  const drawn = (/** @type {number[][]} */ curves, own = {}, goal = "minimize") => yAxis("val/loss", curves.flatMap((y, i) => ({ ...lines(y)[0], label: `run ${i + 1}`, curve: { ...lines(y)[0].curve, goal } })), curves.map((y) => ({ y })), false, own);
  assert.equal(drawn([...all, diverged]).outside, "1 is above: run 5");
  assert.ok(drawn([...all, diverged]).axis.high < 12);
  assert.ok(drawn([...all, diverged], { all: true }).axis.high > 1000);
  assert.equal(drawn([[7, 5], [7, 5.1], [7, 4.9], [10, 1005]]).outside, "1 is above: run 4");
  assert.equal(drawn([...all, diverged, diverged]).named, "2 are above: run 5; run 6");
  assert.equal(drawn([...all, diverged, diverged]).outside, "2 are above");
  // A rate that is higher is no failure.
  assert.equal(drawn([...all, diverged], {}, "").outside, "");
  assert.equal(drawn([...all, all[0].map((value) => value - 500)]).outside, "1 is below: run 5");
  // Nor is a run that is slow.
  assert.equal(yAxis("mfu", [...all, diverged].map((y) => ({ ...lines(y)[0], curve: { ...lines(y)[0].curve, goal: "maximize", speed: true } })), [{ y: diverged }], false, {}).outside, "");
  // Of two, neither is most; and a level of its own is no divergence.
  for (const curves of [[all[0], diverged], [all[0], all[0].map((value) => value - 500)], [...all, falling(3)], [[1, 1], [1, 1], [2, 2]], all, []]) assert.equal(drawn(curves).outside, "");
});

test("a given range is the range, and infinite values have no part in it", () => {
  const given = yOf("train/loss", [1, 2, 3], { range: [2.5, 4] }).axis;
  assert.deepEqual([given.low, given.high], [2.5, 4]);
  const { low, high } = yOf("train/loss", [1, NaN, Infinity, 3]).axis;
  assert.ok(low > 0.5 && low < 1 && high > 3 && high < 3.5, `${low} ${high}`);
  assert.ok(Number.isFinite(yOf("train/loss", [NaN]).axis.high));
  const log = yOf("train/loss", [0, -1, 1, 100], {}, true).axis;
  assert.ok(log.low > 0 && log.low < 1 && log.high > 100, `${log.low} ${log.high}`);
});

test("a scale leads from values to pixels and back, on both kinds of axes and downwards", () => {
  for (const log of [false, true]) {
    for (const down of [false, true]) {
      const scale = scaleOf({ low: 1, high: 1000, log, ticks: [] }, 300, down);
      assert.ok(Math.abs(scale.pixel(1) - (down ? 300 : 0)) < 1e-9);
      for (const value of [1, 10, 500, 1000]) assert.ok(Math.abs(scale.value(scale.pixel(value)) - value) < 1e-6);
    }
  }
});

test("a band has an outline for each part without a gap", () => {
  assert.equal(bandPath([0, 1, 2], [0, 0, 0], [5, 5, 5]), "M0.0 0.0L1.0 0.0L2.0 0.0L2.0 5.0L1.0 5.0L0.0 5.0Z");
  assert.equal(bandPath([0, 1, 2, 3, 4], [0, 0, NaN, 0, 0], [5, 5, 5, 5, 5]).match(/M/g)?.length, 2);
  assert.equal(bandPath([], [], []), "");
});

test("a logarithmic axis says how many points it leaves out, and is refused without a value above zero", () => {
  assert.deepEqual(logOf(lines([1, 2, 3]), true), { log: true, note: null });
  assert.deepEqual(logOf(lines([0, -1, 2, NaN, 3]), true), { log: true, note: "2 points at or below 0" });
  assert.deepEqual(logOf([...lines([0, 2]), ...lines([5])], true), { log: true, note: "1 point at or below 0" });
  assert.deepEqual(logOf(lines([0, -1, NaN]), true), { log: false, note: "not logarithmic: no value above 0" });
  assert.deepEqual(logOf(lines([0, -1]), false), { log: false, note: null });
});

test("labels of a logarithmic axis fit beside it: the unit of a rate is in its name", () => {
  const found = texts(yOf("tokens_per_s", [400, 5000], {}, true).axis);
  assert.ok(found.length >= 2 && found.every((text) => /^[\d.]+k?$/.test(text)), `${found}`);
  assert.ok(texts(yOf("step_time_s", [0.2, 9], {}, true).axis).every((text) => / m?s$/.test(text)));
});

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

test("numbers over a factor of four and more are steps of a factor", () => {
  const { at } = axis([1e-4, 1e-3, 1e-2]);
  [0, 0.5, 1].forEach((share, i) => assertClose(at[i], share));
  assertClose(axis([1, 2, 3.9]).at[1], 1 / 2.9);
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
  assert.deepEqual(axis([16, "auto", 8]).at, [0, 1, 0.5]);
});

test("many numbers have three ticks, the middle one where the axis has its middle", () => {
  const line = axis([11, 12, 13, 14, 15, 16, 17, 18, 19]).ticks;
  assert.deepEqual(line.map((tick) => tick.label), ["<11>", "<15>", "<19>"]);
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

test("a flat curve gets a range around it, and others their own", () => {
  assert.deepEqual([steady(5, 5), steady(-5, -5)], [[4.5, 5.5], [-5.5, -4.5]]);
  assert.deepEqual(steady(5, 5.00001)?.map((one) => Math.round(one * 10)), [45, 55]);
  assert.deepEqual([steady(5, 6), steady(0, 0)], [null, null]);
});

test("a time axis has the largest unit that leaves two of them", () => {
  assert.deepEqual([10, 120, 121, 7200, 7201, 172800, 172801].map((longest) => timeUnit(longest)[1].trim()), ["s", "s", "m", "m", "h", "h", "d"]);
  assert.deepEqual([10, 300, 10000, 1e6].map((longest) => timeUnit(longest)[0]), [1, 60, 3600, 86400]);
});
