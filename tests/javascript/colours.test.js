/** Colours of runs: one for each, told apart among those shown together. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { along, faded, slot, slots, stroke } from "../../api/lehr_api/dashboard/static/js/colour.js";
import { fc } from "./support.js";

test("a run's own colour depends on its id alone", () => {
  assert.deepEqual(["k3f9x2ab", "p8w2c4nd", "zürich", ""].map(slot), [5, 5, 4, 1]);
  fc.assert(fc.property(fc.string(), (id) => assert.ok(slot(id) >= 0 && slot(id) < 10)));
});

test("the first of several runs keeps its own colour, and ten have ten", () => {
  fc.assert(
    fc.property(fc.uniqueArray(fc.string({ minLength: 1 }), { minLength: 1, maxLength: 20 }), (ids) => {
      const given = slots(ids);
      assert.equal(given.get(ids[0]), slot(ids[0]));
      assert.equal(new Set(given.values()).size, ids.length);
    }),
  );
});

test("runs have the colours here that they have in figures of notebooks", () => {
  // tests/platform/analysis/test_figures.py holds Python's rule to the same numbers.
  const ids = Array.from({ length: 12 }, (_, i) => `run${i}`);
  assert.deepEqual([...slots(ids).values()], [2, 1, 4, 3, 8, 7, 0, 9, 5, 6, 17, 18]);
});

test("beyond twenty colours repeat", () => {
  const ids = Array.from({ length: 25 }, (_, i) => `run${i}`);
  const given = [...slots(ids).values()];
  assert.equal(new Set(given).size, 20);
  assert.ok(given.every((one) => one >= 0 && one < 20));
});

test("a colour becomes see-through in either notation", () => {
  assert.equal(faded("#3f90da", 0.35), "rgba(63, 144, 218, 0.35)");
  assert.equal(faded("rgb(1, 2, 3)", 0.5), "rgba(1, 2, 3, 0.5)");
});

/** The grounds of both themes, as the style sheet has them: light, dark. */
const GROUNDS = [...readFileSync(new URL("../../api/lehr_api/dashboard/static/css/tokens.css", import.meta.url), "utf8").matchAll(/--bg: (#[0-9a-f]{6})/g)].map(([, hex]) => hex);

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
    globalThis.document = /** @type {any} */ ({ documentElement: { dataset: { theme } } });
    const scale = Array.from({ length: 501 }, (_, n) => along(n / 500));
    for (const colour of [...scale, ...Array.from({ length: 10 }, (_, n) => stroke(n).colour)]) {
      assert.ok(contrast(colour, GROUNDS[i]) >= 3, `${theme}: ${colour} has ${contrast(colour, GROUNDS[i]).toFixed(2)}`);
    }
    // Lighter from end to end, so that the order is seen without the hue.
    assert.ok(scale.every((colour, n) => n === 0 || luminance(colour) >= luminance(scale[n - 1]) - 1e-3), theme);
  }
});
