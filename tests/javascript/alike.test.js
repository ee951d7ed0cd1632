/** Charts that would look as they do are not drawn again, and an axis that grows has room at its end. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { alike } from "../../api/lehr_api/dashboard/static/js/charts/lines.js";
import { roomy } from "../../api/lehr_api/dashboard/static/js/charts/lines.js";
import { curve, fc } from "./support.js";

const points = curve([[1, 2], [2, 1]]);
const line = { run: "a", label: "lr 1", colour: "red", dash: /** @type {const} */ ("solid"), curve: points };
const look = { x: /** @type {const} */ ("step"), logx: false, logy: false, band: true, span: /** @type {[number, number]} */ ([1, 2]) };
const drawn = { lines: [line], look };

test("a chart with the same curves and look is alike, whatever objects they are in", () => {
  assert.ok(alike(drawn, { lines: [{ ...line }], look: { ...look, span: [1, 2] } }));
  assert.ok(!alike(undefined, drawn));
});

test("another curve, line or look is not alike", () => {
  const others = [
    { lines: [], look },
    { lines: [line, line], look },
    { lines: [{ ...line, curve: { ...points } }], look },
    { lines: [{ ...line, run: "b" }], look },
    { lines: [{ ...line, label: "lr 2" }], look },
    { lines: [{ ...line, colour: "blue" }], look },
    { lines: [{ ...line, dash: /** @type {const} */ ("dash") }], look },
    { lines: [{ ...line, cut: true }], look },
    { lines: [{ ...line, metric: "mfu" }], look },
    { lines: [line], look: { ...look, x: /** @type {const} */ ("time") } },
    { lines: [line], look: { ...look, logx: true } },
    { lines: [line], look: { ...look, logy: true } },
    { lines: [line], look: { ...look, band: false } },
    { lines: [line], look: { ...look, span: /** @type {[number, number]} */ ([1, 3]) } },
    { lines: [line], look: { ...look, span: null } },
  ];
  for (const other of others) assert.ok(!alike(drawn, other), JSON.stringify(other));
});

test("the end of a growing axis has room for some points, and stays while they come", () => {
  assert.deepEqual(roomy([0, 330]), [0, 336]);
  assert.deepEqual(roomy([1, 330]), [1, 337]);
  assert.deepEqual([331, 334, 336, 337].map((last) => roomy([0, last])?.[1]), [336, 336, 336, 344]);
  assert.equal(roomy(null), null);
  fc.assert(fc.property(fc.double({ min: 0, max: 1e9, noNaN: true }), fc.double({ min: 1e-3, max: 1e12, noNaN: true }), (first, length) => {
    const last = first + length;
    fc.pre(last > first);
    const [from, to] = roomy([first, last]) ?? [NaN, NaN];
    assert.equal(from, first);
    assert.ok(to >= last - 1e-6 * length && to <= last + (last - first) / 31, `${first} ${last} ${to}`);
  }));
});
