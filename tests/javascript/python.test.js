/** The Python of a chart: reads the curves that it shows. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { pythonOf } from "../../api/lehr_api/dashboard/static/js/charts/python.js";
import { bySeeds } from "../../api/lehr_api/dashboard/static/js/charts/seeds.js";
import { curve } from "./support.js";

/** @param {string} id @param {string} [label] @returns {any} */
const line = (id, label = id) => ({ run: id, label, curve: curve([[1, 2], [2, 1]]) });

test("the points of a metric are one line", () => {
  assert.equal(pythonOf("val/loss", [line("r1")]), 'lehr.Client().run("r1").history("val/loss")');
  assert.equal(pythonOf("val/loss", [line("r1"), line("r2")]), '[lehr.Client().run(one).history("val/loss") for one in ("r1", "r2")]');
});

test("an expression is computed at the steps of its sparsest metric", () => {
  assert.equal(pythonOf("exp(val/loss) - (train/loss + 1) / -2", [line("r1", 'the "first"'), line("r2")]), `import lehr
import numpy as np


def curve(run):
    h = lehr.Client().run(run).history("val/loss", "train/loss").set_index("step")
    # At the steps of the sparsest metric that all have reached.
    h = h.ffill().where(h.bfill().notna())[h[h.count().idxmin()].notna()].dropna()
    return np.exp(h["val/loss"]) - (h["train/loss"] + 1) / -2


curves = {
    "the \\"first\\"": curve("r1"),
    "r2": curve("r2"),
}`);
  assert.ok(!pythonOf("train/loss - val/loss", [line("r1")]).includes("numpy"));
});

test("the mean of a group has its members, with the lowest and the highest of them", () => {
  const lines = bySeeds([line("r1"), line("r2"), line("r3")], ({ run }) => (run === "r3" ? "lr 1e-3" : "lr 3e-4"));
  const found = pythonOf("val/loss", lines);
  assert.equal(found, `import lehr
import pandas as pd


def curve(run):
    return lehr.Client().run(run).history("val/loss").set_index("step")["val/loss"]


def mean(curve, *runs):
    h = pd.concat([curve(run) for run in runs], axis=1, keys=runs)
    # At the steps of the run with the most points, and before and after it; of the runs that have a value there.
    finest = h[h.count().idxmax()]
    h = h.ffill().where(h.bfill().notna())[finest.notna() | finest.ffill().isna() | finest.bfill().isna()]
    return h.agg(["mean", "min", "max"], axis=1)


curves = {
    "lr 3e-4, mean of 2 seeds": mean(curve, "r1", "r2"),
    "r3": mean(curve, "r3"),
}`);
});

test("the mean of an expression is the mean of its curves", () => {
  const found = pythonOf("a - b", bySeeds([line("r1"), line("r2")], () => "g"));
  assert.match(found, /return h\["a"\] - h\["b"\]\n/);
  assert.match(found, /mean\(curve, "r1", "r2"\)/);
});

test("curves of the same name stay apart", () => {
  const found = pythonOf("a - b", [line("r1", "same"), line("r2", "same")]);
  assert.match(found, /"same \(r1\)": curve\("r1"\)/);
  assert.match(found, /"same \(r2\)": curve\("r2"\)/);
});
