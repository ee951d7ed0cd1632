/** The sample of text that a run had written by a step. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { sampleAt } from "../../api/lehr_api/dashboard/static/js/charts/tip.js";

/** @param {number} step @param {number} [attempt] @returns {any} */
const sample = (step, attempt = 1) => ({ step, attempt });

test("the sample of a step is the newest by then, of the newest attempt", () => {
  const samples = [sample(100), sample(300), sample(200), sample(200, 2)];
  assert.deepEqual(sampleAt(samples, 250), sample(200, 2));
  assert.deepEqual(sampleAt(samples, 300), sample(300));
  assert.equal(sampleAt(samples, 99), null);
});
