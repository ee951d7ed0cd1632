/** Groups of runs: their names, their members, and what their values are together. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { bySeeds } from "../../api/lehr_api/dashboard/static/js/charts/seeds.js";
import { groupOf, inGroups, spreadOf } from "../../api/lehr_api/dashboard/static/js/groups.js";
import { Configs } from "../../api/lehr_api/dashboard/static/js/runs/configs.js";
import { grouper, namesIn } from "../../api/lehr_api/dashboard/static/js/runs/grouping.js";
import { curve, run } from "./support.js";

/** @param {string} path @param {any} [value] */
const by = (path, value) => ({ by: path, value: () => value, text: (/** @type {any} */ v) => `<${v}>` });

test("a run's group is its value of a path, its tags, one tag, or its project", () => {
  const one = run({ tags: ["b", "a"], project: "p" });
  assert.equal(groupOf(one, by("train.optimizer.lr", 0.1)), "lr <0.1>");
  assert.equal(groupOf(one, by("train.optimizer.lr", 0)), "lr <0>");
  assert.equal(groupOf(one, by("train.optimizer.lr", null)), "no lr");
  assert.equal(groupOf(one, by("tag")), "a, b");
  assert.equal(groupOf(run(), by("tag")), "no tag");
  assert.equal(groupOf(one, by("tag:a")), "a");
  assert.equal(groupOf(run(), by("tag:a")), "not a");
  assert.equal(groupOf(one, by("project")), "p");
});

test("a group by several keys has the value of each", () => {
  const values = /** @type {Record<string, any>} */ ({ "train.optimizer.lr": 0.1, "train.model": "tiny" });
  const grouping = { value: (/** @type {string} */ _, /** @type {string} */ path) => values[path], text: (/** @type {any} */ v, /** @type {string} */ path) => `${v}@${path.length}` };
  const one = run({ tags: ["b"], project: "p" });
  assert.equal(groupOf(one, { by: "train.optimizer.lr, train.model,tag:b", ...grouping }), "lr 0.1@18 · model tiny@11 · b");
  assert.equal(groupOf(one, { by: "project,train.seed", ...grouping }), "p · no seed");
});

test("keys of a grouping are the ends of paths, and no group is made where no run has one", () => {
  const configs = new Configs();
  configs.take({ runs: ["a", "c"], same: {}, differing: { "train.optimizer.lr": [1e-3, 3e-3] }, metrics: {} });
  assert.deepEqual(namesIn("lr, tag, tag:a, project"), ["lr"]);
  assert.equal(grouper("lr,tag:b", configs)?.(run({ id: "c" })), "lr 3.0e-3 · not b");
  assert.deepEqual(["", "lr, los"].map((text) => grouper(text, configs)), [null, null]);
});

test("groups are in the order of their first runs", () => {
  assert.deepEqual([...inGroups([3, 1, 4, 5], (n) => (n % 2 ? "odd" : "even"))], [["odd", [3, 1, 5]], ["even", [4]]]);
});

test("a mean is of the values that there are, and a single one has no deviation", () => {
  assert.deepEqual(spreadOf([1, 3, null, NaN]), { n: 2, mean: 2, deviation: Math.SQRT2 });
  assert.deepEqual(spreadOf([5]), { n: 1, mean: 5, deviation: null });
  assert.deepEqual(spreadOf([null]), { n: 0, mean: null, deviation: null });
});

test("runs of a group are one line with their mean and range, under the group's name", () => {
  const line = (/** @type {string} */ id, /** @type {number} */ value) => ({ run: id, label: id, colour: "red", dash: /** @type {const} */ ("solid"), curve: curve([[1, value], [2, value]]) });
  const groups = /** @type {Record<string, string>} */ ({ a: "lr 1", b: "lr 2", c: "lr 1" });
  const found = bySeeds([line("a", 1), line("b", 5), line("c", 3)], (one) => groups[one.run], "runs");
  assert.deepEqual(found.map((one) => one.label), ["lr 1, mean of 2 runs", "lr 2, one run"]);
  assert.deepEqual([found[0].curve.y, found[0].curve.low, found[0].curve.high], [[2, 2], [1, 1], [3, 3]]);
});
