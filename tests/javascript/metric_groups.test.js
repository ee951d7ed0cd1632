import { test } from "node:test";
import assert from "node:assert/strict";

import { grouped, groupOf } from "../../api/lehr_api/dashboard/static/js/charts/metric_groups.js";

test("a metric is grouped by its prefix, or by what it measures", () => {
  assert.equal(groupOf("train/loss"), "train");
  assert.equal(groupOf("tokens_per_s"), "speed");
  assert.equal(groupOf("step"), "other");
});

test("the usual groups come first, the others by name, and a digest is not drawn", () => {
  const names = ["zeta/a", "data/digest", "memory/peak", "data/wait_s", "mfu", "train/lr", "val/loss", "train/loss"];
  assert.deepEqual(grouped(names), [
    ["train", ["train/lr", "train/loss"]],
    ["val", ["val/loss"]],
    ["speed", ["mfu"]],
    ["memory", ["memory/peak"]],
    ["data", ["data/wait_s"]],
    ["zeta", ["zeta/a"]],
  ]);
});
