/** The contour of a sweep: what is between its trials. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { between, levels } from "../../api/lehr_api/dashboard/static/js/sweep/contour.js";
import { fc } from "./support.js";

const share = fc.double({ min: 0, max: 1, noNaN: true });
const point = fc.record({ x: share, y: share, value: fc.double({ min: -100, max: 100, noNaN: true }) });

test("at a trial is its own value, and near it almost that", () => {
  const points = [{ x: 0, y: 0, value: 1 }, { x: 1, y: 1, value: 3 }];
  assert.equal(between(points, 0, 0), 1);
  assert.equal(between(points, 0.5, 0.5), 2);
  assert.ok(between(points, 0.1, 0.1) < 1.1);
});

test("no place is better than the best trial or worse than the worst", () => {
  fc.assert(fc.property(fc.array(point, { minLength: 1, maxLength: 8 }), share, share, (points, x, y) => {
    const values = points.map((one) => one.value);
    const found = between(points, x, y);
    assert.ok(found >= Math.min(...values) - 1e-9 && found <= Math.max(...values) + 1e-9, `${found}`);
  }));
});

test("the levels of each row cover it once, from the lowest to the highest", () => {
  const found = levels([{ x: 0, y: 0.5, value: 0 }, { x: 1, y: 0.5, value: 9 }], 0, 9);
  const rows = new Set(found.map(({ row }) => row));
  for (const row of rows) {
    const parts = found.filter((one) => one.row === row);
    parts.forEach((part, i) => assert.equal(part.column, i ? parts[i - 1].column + parts[i - 1].width : 0));
    const last = parts[parts.length - 1];
    assert.equal(last.column + last.width, 64);
    assert.deepEqual(parts.map(({ level }) => level), [...parts.map(({ level }) => level)].sort((a, b) => a - b));
  }
  assert.equal(rows.size, 44);
  assert.equal(levels([{ x: 0, y: 0, value: 5 }], 5, 5).every(({ level }) => level === 0), true);
});
