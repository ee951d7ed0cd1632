/** What was written at a step: the sample by then, and its lines of the log. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { linesOf, sampleAt } from "../../api/lehr_api/dashboard/static/js/charts/tip.js";

/** @param {number} step @param {number} [attempt] @returns {any} */
const sample = (step, attempt = 1) => ({ step, attempt });

test("the sample of a step is the newest by then, of the newest attempt", () => {
  const samples = [sample(100), sample(300), sample(200), sample(200, 2)];
  assert.deepEqual(sampleAt(samples, 250), sample(200, 2));
  assert.deepEqual(sampleAt(samples, 300), sample(300));
  assert.equal(sampleAt(samples, 99), null);
});

test("lines of a step end where the next one begins, and numbers are whole", () => {
  const text = "step 36/400  loss 3\nstep 361/400  loss 2\na warning\nstep 361  saved it\nstep 362  loss 1\n";
  assert.deepEqual(linesOf(text, 361), ["step 361/400  loss 2", "a warning", "step 361  saved it"]);
  assert.deepEqual(linesOf(text, 36), ["step 36/400  loss 3"]);
  assert.deepEqual(linesOf(text, 6), []);
  assert.deepEqual(linesOf("Step: 1,200 done", 1200), ["Step: 1,200 done"]);
  assert.equal(linesOf(`step 1\n${"more\n".repeat(50)}`, 1).length, 6);
});
