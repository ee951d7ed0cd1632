/** The lines of a chart: of one metric or several, of single runs or as means. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { isComputed, metricsIn, partsOf } from "../../api/lehr_api/dashboard/static/js/charts/expression.js";
import { linesOf } from "../../api/lehr_api/dashboard/static/js/charts/lines.js";
import { ownFromAddress, ownToAddress } from "../../api/lehr_api/dashboard/static/js/charts/menu.js";
import { problemOf } from "../../api/lehr_api/dashboard/static/js/charts/search.js";
import { curve } from "./support.js";

globalThis.document = /** @type {any} */ ({ documentElement: { dataset: { theme: "light" } } });

const BOTH = "train/loss, val/loss";
/** @type {Record<string, any>} */
const CURVES = { "r1 train/loss": curve([[1, 3]]), "r1 val/loss": curve([[1, 4]]), "r2 train/loss": curve([[1, 5]]), "r2 val/loss": curve([[1, 6]]), "r3 train/loss": curve([[1, 7]]) };
/** @param {string} run @param {string} name */
const curveOf = (run, name) => CURVES[`${run} ${name}`];
/** @param {string} id @param {Record<string, any>} [rest] @returns {any} */
const run = (id, rest = {}) => ({ id, label: id, stroke: () => ({ colour: "#3f90da", dash: "solid" }), ...rest });

test("a chart has several metrics or expressions, with commas between them", () => {
  assert.deepEqual(partsOf(" train/loss ,val/loss "), ["train/loss", "val/loss"]);
  assert.deepEqual(metricsIn("exp(val/loss), train/loss, val/loss"), ["val/loss", "train/loss"]);
  assert.deepEqual(["train/loss", "train/loss,", "a - b", BOTH].map(isComputed), [false, false, true, true]);
  assert.deepEqual([BOTH, "a, b - c", "a, b -", "a, 3", "a, b c"].map((one) => problemOf(one) === null), [true, true, false, false, false]);
});

test("the metrics of one run have a colour each, and its own comes first", () => {
  const { lines } = linesOf(BOTH, [run("r1")], curveOf, null);
  assert.deepEqual(lines.map(({ label, metric, curve: { y } }) => [label, metric, y[0]]), [["train/loss", "train/loss", 3], ["val/loss", "val/loss", 4]]);
  assert.equal(lines[0].colour, "#3f90da");
  assert.equal(new Set(lines.map(({ colour }) => colour)).size, 2);
});

test("the metrics of several runs have the colours of the runs, and a dash each", () => {
  const { lines } = linesOf(BOTH, [run("r1"), run("r2"), run("r3"), run("r4", { hidden: true })], curveOf, null);
  assert.deepEqual(lines.map(({ label, dash }) => [label, dash]), [["r1 · train/loss", "solid"], ["r2 · train/loss", "solid"], ["r3 · train/loss", "solid"], ["r1 · val/loss", "dash"], ["r2 · val/loss", "dash"]]);
  assert.deepEqual(new Set(lines.map(({ colour }) => colour)), new Set(["#3f90da"]));
});

test("a chart of one metric has a line for each run that is shown", () => {
  const { lines } = linesOf("train/loss", [run("r1"), run("r2", { hidden: true }), run("r9")], curveOf, null);
  assert.deepEqual(lines.map(({ run: id, label, dash, metric }) => [id, label, dash, metric]), [["r1", "r1", "solid", undefined]]);
});

test("means are of one metric each", () => {
  const { lines, drawnAs } = linesOf(BOTH, [run("r1", { group: "g" }), run("r2", { group: "g" })], curveOf, "seeds");
  assert.deepEqual(lines.map(({ label, curve: { y } }) => [label, y[0]]), [["g · train/loss, mean of 2 seeds", 4], ["g · val/loss, mean of 2 seeds", 5]]);
  assert.equal(drawnAs.get("r2"), "r1");
});

test("settings of a chart with several metrics are kept in the address", () => {
  const own = new Map([[BOTH, { log: true }], ["a", { all: true }]]);
  assert.deepEqual([...ownFromAddress(ownToAddress(own)).keys()], [BOTH, "a"]);
});
