import assert from "node:assert/strict";
import test from "node:test";
import { startFacts } from "../../api/lehr_api/dashboard/static/js/run/system.js";

test("counts that a program did not declare are no facts of its device", () => {
  const start = { kind: "started", device: "cpu", parameters: 0, tokens_per_step: 1, total_steps: 300 };
  assert.deepEqual(startFacts(start), [["device", "cpu"], ["total_steps", 300]]);
});
