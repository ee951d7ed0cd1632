/** The order of the runs table: by one column or several, kept in the address. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { RunList } from "../../api/lehr_api/dashboard/static/js/runs/list.js";
import { markOf, ordersOf, pressed, textOf } from "../../api/lehr_api/dashboard/static/js/runs/list.js";
import { run } from "./support.js";

test("the address has the columns in order, with a minus for falling", () => {
  for (const text of ["loss", "-loss", "state,-train.optimizer.lr", "-some-metric,gpus"]) assert.equal(textOf(ordersOf(text)), text);
  assert.deepEqual(ordersOf("-some-metric,gpus"), [{ key: "some-metric", down: true }, { key: "gpus", down: false }]);
  assert.deepEqual([ordersOf(null), ordersOf(""), textOf([])], [[], [], null]);
});

test("a click sorts by one column: rising, falling, newest first again", () => {
  const once = pressed([], "loss", false);
  assert.equal(textOf(once), "loss");
  assert.equal(textOf(pressed(once, "loss", false)), "-loss");
  assert.equal(textOf(pressed(ordersOf("-loss"), "loss", false)), null);
  assert.equal(textOf(pressed(ordersOf("state,-loss"), "loss", false)), "loss");
});

test("with shift, a column is added after the others, turned, and taken out again", () => {
  const both = pressed(ordersOf("state"), "loss", true);
  assert.equal(textOf(both), "state,loss");
  assert.equal(textOf(pressed(both, "loss", true)), "state,-loss");
  assert.equal(textOf(pressed(both, "state", true)), "-state,loss");
  assert.equal(textOf(pressed(ordersOf("-state,loss"), "state", true)), "loss");
});

test("a head shows its direction, and its place among several", () => {
  assert.equal(markOf(ordersOf("-loss"), "loss"), " ↓");
  assert.equal(markOf(ordersOf("state,-loss"), "loss"), " ↓2");
  assert.equal(markOf(ordersOf("state,-loss"), "state"), " ↑1");
  assert.equal(markOf(ordersOf("state"), "loss"), "");
});

test("runs that are equal by the first column are sorted by the next", () => {
  const list = new RunList();
  for (const [id, gpus, name] of /** @type {[string, number, string][]} */ ([["a", 8, "x"], ["b", 1, "z"], ["c", 8, "y"], ["d", 1, "y"]])) list.runs.set(id, run({ id, gpus, name }));
  const ids = (/** @type {boolean} */ first, /** @type {boolean} */ second) => list.sorted([{ by: (one) => one.gpus, down: first }, { by: (one) => one.name, down: second }]).map((one) => one.id).join("");
  assert.equal(ids(false, false), "dbac");
  assert.equal(ids(true, false), "acdb");
  assert.equal(ids(false, true), "bdca");
});
