/** Colours of runs: one for each, told apart among those shown together. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { faded, slot, slots } from "../../api/lehr_api/dashboard/static/js/colour.js";
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
