/** Groups of runs by a metric: equal parts, few exact values, or a named value between two. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { binOf, edgesOf, readKey } from "../../api/lehr_api/dashboard/static/js/bins.js";
import { fromWire } from "../../api/lehr_api/dashboard/static/js/format.js";
import { Configs } from "../../api/lehr_api/dashboard/static/js/runs/configs.js";
import { grouper, namesIn } from "../../api/lehr_api/dashboard/static/js/runs/grouping.js";
import { run } from "./support.js";

const CASES = JSON.parse(readFileSync(new URL("../data/metric_bins.json", import.meta.url), "utf8"));

for (const { case: what, values, names } of CASES) {
  test(`values of a metric are grouped as the server does: ${what}`, () => {
    const read = values.map(fromWire);
    const edges = edgesOf(read.filter((/** @type {number | null} */ value) => value !== null));
    assert.deepEqual(read.map((/** @type {number | null} */ value) => binOf("m", value, edges)), names);
  });
}

test("a key is a metric, or a metric and the value that divides the runs", () => {
  assert.deepEqual(readKey("val/loss<2.5"), { metric: "val/loss", edge: 2.5 });
  assert.deepEqual(readKey("val/loss < -1e-3"), { metric: "val/loss", edge: -1e-3 });
  assert.deepEqual(readKey("val/loss"), { metric: "val/loss", edge: null });
  assert.deepEqual(readKey("a<1e"), { metric: "a<1e", edge: null });
  assert.deepEqual(namesIn("lr, tag, tag:a, val/loss<2, project"), ["lr", "val/loss"]);
});

/** @param {string} id @param {number} loss @param {any} [changes] */
const of = (id, loss, changes = {}) => run({ id, latest: { "val/loss": { value: loss, step: 1 } }, ...changes });

test("runs are grouped by a metric, alone or with a path of the config", () => {
  const configs = new Configs();
  configs.take({ runs: ["a", "b", "c"], same: {}, differing: { "train.optimizer.lr": [1e-3, 1e-3, 3e-3] }, metrics: {} });
  const runs = [of("a", 2), of("b", 2.5), of("c", 3.25), run({ id: "d" })];
  assert.deepEqual(runs.map(grouper("val/loss<3", configs, runs) ?? String), ["val/loss below 3", "val/loss below 3", "val/loss from 3", "no val/loss"]);
  assert.equal(grouper("lr,val/loss<3", configs, runs)?.(runs[2]), "lr 3.0e-3 · val/loss from 3");
  assert.equal(grouper("val/los", configs, runs), null);
});

test("a metric that the view of a run lacks is read among those that were fetched", () => {
  const configs = new Configs();
  configs.take({ runs: ["a", "b"], same: {}, differing: {}, metrics: { "eval/Acc": [0.25, 0.75] } });
  const runs = [run({ id: "a" }), run({ id: "b" })];
  assert.deepEqual(runs.map(grouper("eval/Acc", configs, runs) ?? String), ["eval/Acc below 0.5", "eval/Acc from 0.5"]);
});

test("bounds stay while runs train, so a curve changes its group only when its value passes one", () => {
  const before = [of("a", 2.25), of("b", 3.25)];
  assert.equal(grouper("val/loss", new Configs(), before)?.(before[1]), "val/loss from 3");
  const after = [of("a", 1.5), of("b", 1.75)];
  assert.equal(grouper("val/loss", new Configs(), after)?.(after[1]), "val/loss below 3");
  const ended = [of("a", 1.5, { ended_at: 5 }), of("b", 1.75)];
  assert.equal(grouper("val/loss", new Configs(), ended)?.(ended[1]), "val/loss from 1.6");
});
