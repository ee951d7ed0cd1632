/** What the page of a run shows around it: its place in the queue, and whether it can be forked. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { aboutQueue, canForkFrom, looksAgain } from "../../api/lehr_api/dashboard/static/js/run/header.js";
import { run } from "./support.js";

test("a run is forked from a checkpoint that is still there", () => {
  assert.equal(canForkFrom([]), false);
  assert.equal(canForkFrom([{ removed_at: 5 }]), false);
  assert.equal(canForkFrom([{ removed_at: 5 }, { removed_at: null }]), true);
});

test("the page looks again while the run waits, and until it has a checkpoint", () => {
  assert.equal(looksAgain(run({ state: "queued", step: null }), false), true);
  assert.equal(looksAgain(run({ state: "queued", step: 5 }), true), true);
  assert.equal(looksAgain(run({ state: "running", step: 5 }), false), true);
  assert.equal(looksAgain(run({ state: "running", step: 5 }), true), false);
  assert.equal(looksAgain(run({ state: "running", step: null }), false), false);
  assert.equal(looksAgain(run({ state: "completed", step: 5 }), false), false);
});

test("the place in the queue has the expected start and what that rests on", () => {
  const entry = /** @type {any} */ ({ run_id: "r1", position: 3, expected_start: 3700, expected_because: "big-run ends" });
  assert.deepEqual(aboutQueue([entry], "r1", 100), { position: 3, expected: "expected to start in about 1 h, when big-run ends" });
  assert.deepEqual(aboutQueue([{ ...entry, expected_start: null }], "r1", 100), { position: 3, expected: null });
  assert.deepEqual(aboutQueue([entry], "r2", 100), { position: null, expected: null });
});
