import assert from "node:assert/strict";
import { test } from "node:test";

import { newsOf } from "../../api/lehr_api/dashboard/static/js/news.js";

const run = { name: "big", state: "running", reason: null, alerts: [] };

test("a run that is seen for the first time has no news, whatever its state", () => {
  assert.deepEqual(newsOf(undefined, { ...run, state: "failed", alerts: ["nan"] }), []);
});

test("an end is news once, with its reason", () => {
  const failed = { ...run, state: "failed", reason: "out of memory" };
  assert.deepEqual(newsOf(run, failed), [{ title: "big failed", body: "out of memory" }]);
  assert.deepEqual(newsOf(failed, failed), []);
  assert.deepEqual(newsOf(run, { ...run, state: "stopping" }), []);
});

test("each new alert is news, known ones are not", () => {
  const one = { ...run, alerts: ["the loss rose"] };
  assert.deepEqual(newsOf(run, one), [{ title: "big: alert", body: "the loss rose" }]);
  assert.deepEqual(newsOf(one, { ...one, alerts: ["the loss rose", "spikes"] }).map((news) => news.body), ["spikes"]);
  assert.deepEqual(newsOf(one, run), []);
});
