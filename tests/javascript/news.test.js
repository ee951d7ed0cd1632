import assert from "node:assert/strict";
import { test } from "node:test";

import { newsOf } from "../../api/lehr_api/dashboard/static/js/news.js";

const run = { name: "big", state: "running", reason: null, alerts: [] };

test("a run that is seen for the first time has no news, whatever its state", () => {
  assert.deepEqual(newsOf(undefined, { ...run, state: "failed", alerts: ["nan"] }), []);
});

test("an end is news once, with its reason", () => {
  const failed = { ...run, state: "failed", reason: "out of memory" };
  assert.deepEqual(newsOf(run, failed), [{ title: "big failed", body: "out of memory · It ended before its first step." }]);
  assert.deepEqual(newsOf(failed, failed), []);
  assert.deepEqual(newsOf(run, { ...run, state: "stopping" }), []);
});

test("each new alert is news, known ones are not", () => {
  const one = { ...run, alerts: ["the loss rose"] };
  assert.deepEqual(newsOf(run, one), [{ title: "big: alert", body: "the loss rose" }]);
  assert.deepEqual(newsOf(one, { ...one, alerts: ["the loss rose", "spikes"] }).map((news) => news.body), ["spikes"]);
  assert.deepEqual(newsOf(one, run), []);
});

test("the text of an end has the step, the loss and the time, and that of an alert its step", () => {
  const ended = { ...run, state: "completed", step: 1000, total_steps: 1000, latest: { "train/loss": { step: 1000, value: 3 }, "val/loss": { step: 1000, value: 3.21 } }, started_at: 0, ended_at: 3600 };
  assert.deepEqual(newsOf(run, ended).map((news) => news.body), ["Step 1,000 of 1,000 · val/loss 3.210 · after 1 h"]);
  assert.deepEqual(newsOf(run, { ...run, step: 20, alerts: ["spikes"] }).map((news) => news.body), ["spikes (step 20)"]);
});
