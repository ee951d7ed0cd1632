/** Which compared runs have other code than the baseline. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { otherCode } from "../../api/lehr_api/dashboard/static/js/code.js";

const [A, B] = ["a".repeat(64), "b".repeat(64)];

/** @param {string[]} values */
const compared = (...values) => ({
  runs: values.map((_, i) => `r${i}`),
  differences: [{ path: "code.digest", values, factor: true }],
});

test("runs with the same other code are one comparison", () => {
  assert.deepEqual(otherCode(compared(A, B, A, B), "r0"), { base: A, others: [{ digest: B, runs: ["r1", "r3"] }], without: [] });
  assert.deepEqual(otherCode(compared(A, B, A, B), "r1").others, [{ digest: A, runs: ["r0", "r2"] }]);
});

test("a run without a capsule is named, not compared", () => {
  assert.deepEqual(otherCode(compared(A, "—"), "r0"), { base: A, others: [], without: ["r1"] });
  assert.equal(otherCode(compared("—", B), "r0").base, null);
});

test("runs of the same code have no difference", () => {
  assert.deepEqual(otherCode({ runs: ["r0", "r1"], differences: [] }, "r0"), { base: null, others: [], without: [] });
});
