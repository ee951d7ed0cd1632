/** Colours of runs: assigned by id, and along a scale. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { along, scaleOf, slot, slots, stroke } from "../../api/lehr_api/dashboard/static/js/colour.js";
import { fc } from "./support.js";

test("a run's own colour depends on its id alone", () => {
  assert.deepEqual(["k3f9x2ab", "p8w2c4nd", "zürich", ""].map(slot), [5, 5, 4, 1]);
  fc.assert(fc.property(fc.string(), (id) => assert.ok(slot(id) >= 0 && slot(id) < 10)));
});

test("a run keeps its colour whoever is beside it, and its dash in whatever order they are", () => {
  fc.assert(
    fc.property(fc.uniqueArray(fc.string({ minLength: 1 }), { minLength: 1, maxLength: 30 }), fc.nat(), (ids, turn) => {
      const given = slots(ids);
      for (const id of ids) assert.equal((given.get(id) ?? NaN) % 10, slot(id));
      const cut = turn % ids.length;
      assert.deepEqual(slots([...ids.slice(cut), ...ids.slice(0, cut)]), given);
      if (ids.every((id) => ids.filter((other) => slot(other) === slot(id)).length <= 4)) assert.equal(new Set(given.values()).size, ids.length);
    }),
  );
  assert.equal(stroke(slots(["p8w2c4nd", "k3f9x2ab"]).get("p8w2c4nd") ?? 0).dash, "dash");
});

test("ten groups have ten colours whatever their order, and a run beside them another dash", () => {
  fc.assert(fc.property(fc.uniqueArray(fc.string(), { minLength: 1, maxLength: 30 }), (names) => {
    const given = slots([], names);
    assert.deepEqual(slots([], names.toReversed()), given);
    assert.equal(new Set(given.values()).size, names.length);
    assert.equal(new Set([...given.values()].map((one) => one % 10)).size, Math.min(10, names.length));
  }));
  assert.deepEqual([slots([], ["p8w2c4nd", "k3f9x2ab"]).get("k3f9x2ab"), slots([], ["p8w2c4nd", "k3f9x2ab"]).get("p8w2c4nd")], [5, 6]);
  assert.equal(slots(["p8w2c4nd"], ["k3f9x2ab"]).get("p8w2c4nd"), 15);
});

test("runs have the colours here that they have in figures of notebooks and in reports", () => {
  // tests/platform/analysis/test_sweep_figure.py holds Python's rule to the same numbers.
  const given = slots(Array.from({ length: 12 }, (_, i) => `run${i}`));
  assert.deepEqual(Array.from({ length: 12 }, (_, i) => given.get(`run${i}`)), [2, 1, 4, 3, 18, 17, 0, 9, 10, 19, 7, 8]);
});

/** Return a colour in the light and in the dark theme. @param {string} colour @returns {string[]} */
const themes = (colour) => /^light-dark\((.+\)|#\w+), (.+)\)$/.exec(colour)?.slice(1) ?? [];

test("a colour of the dark theme has about the hue of its twin", () => {
  const hue = (/** @type {string} */ colour) => {
    const [red, green, blue] = channels(colour);
    return (Math.atan2(Math.sqrt(3) * (green - blue), 2 * red - green - blue) * 180) / Math.PI;
  };
  for (let i = 0; i < 10; i += 1) {
    const [light, dark] = themes(stroke(i).colour);
    const turn = Math.abs(((hue(light) - hue(dark) + 540) % 360) - 180);
    assert.ok(turn <= 40, `${light} and ${dark} are ${turn.toFixed(0)} degrees apart`);
  }
});

/** The grounds of both themes, as the style sheet has them: light, dark. */
const GROUNDS = [...readFileSync(new URL("../../api/lehr_api/dashboard/static/css/base.css", import.meta.url), "utf8").matchAll(/--bg: light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)/g)].flatMap(([, ...both]) => both);

/** @param {string} colour @returns {number[]} */
const channels = (colour) => (colour.startsWith("#") ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : (colour.match(/\d+/g) ?? []).map(Number));

/** @param {string} colour */
function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** @param {string} a @param {string} b */
function contrast(a, b) {
  const [dark, light] = [luminance(a), luminance(b)].sort((one, other) => one - other);
  return (light + 0.05) / (dark + 0.05);
}

test("each colour of a curve has a contrast of 3:1 with the page, in both themes", () => {
  assert.equal(GROUNDS.length, 2);
  for (const [i, theme] of ["light", "dark"].entries()) {
    const scale = Array.from({ length: 501 }, (_, n) => themes(along(n / 500))[i]);
    for (const colour of [...scale, ...Array.from({ length: 10 }, (_, n) => themes(stroke(n).colour)[i])]) {
      assert.ok(contrast(colour, GROUNDS[i]) >= 3, `${theme}: ${colour} has ${contrast(colour, GROUNDS[i]).toFixed(2)}`);
    }
    // Lighter from end to end, so that the order is seen without the hue.
    assert.ok(scale.every((colour, n) => n === 0 || luminance(colour) >= luminance(scale[n - 1]) - 1e-3), theme);
  }
});

test("values have ordered colours as numbers and distinct ones as texts; none is grey, NaN is red", () => {
  const rates = scaleOf([1e-4, 1e-3, "NaN", null, 1e-2, 1e-2]);
  assert.deepEqual([1e-4, 1e-3, 1e-2].map(rates.colour), [0, 0.5, 1].map(along));
  assert.deepEqual([rates.kind, rates.ordered, rates.ticks.map(({ value }) => value)], ["number", false, [1e-4, 1e-3, 1e-2]]);
  assert.deepEqual([rates.colour(null), rates.colour("NaN"), rates.colour(NaN)], ["var(--wait)", "var(--bad)", "var(--bad)"]);
  assert.deepEqual(scaleOf([5, 5]).colour(5), along(0.5));
  const many = scaleOf([0, 1, 2, 3, 4, 5, 6, 7, 10]);
  assert.deepEqual([many.ordered, many.ticks.map(({ label }) => label)], [true, ["0", "5", "10"]]);
  // tests/platform/analysis/test_sweep_figure.py holds Python's rule to the same colours.
  const hex = (/** @type {string} */ colour) => `#${channels(themes(colour)[0]).map((one) => one.toString(16).padStart(2, "0")).join("")}`;
  assert.deepEqual([1e-4, 3e-3, 1e-2].map((rate) => hex(scaleOf([1e-4, 1e-3, 3e-3, 1e-2]).colour(rate))), ["#440154", "#27818e", "#27a783"]);
  const optimizers = ["adamw", "muon", "adamw8bit"];
  assert.deepEqual(optimizers.map((one) => themes(scaleOf(optimizers).colour(one))[0]), ["#0099aa", "#663311", "#777744"]);
  // A text keeps its colour whatever others there are, unless it is taken.
  const names = ["adamw", "muon", "adamw8bit", "lion", "sgd"];
  assert.equal(new Set(names.map(scaleOf(names).colour)).size, 5);
  assert.equal(scaleOf(["muon", null, "zz"]).colour("muon"), scaleOf(["muon"]).colour("muon"));
  assert.deepEqual(scaleOf(["on", 1, true]).kind, "text");
});
