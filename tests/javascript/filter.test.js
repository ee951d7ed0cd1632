/** The filter line of the runs page. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { parseFilter } from "../../api/lehr_api/dashboard/static/js/runs/filter.js";
import { fc, run } from "./support.js";

/** @param {string} text @param {any} one */
const passes = (text, one) => parseFilter(text).test?.(one);

test("an empty line lets every run through", () => {
  for (const text of ["", "   ", "\t"]) assert.deepEqual(parseFilter(text), { query: {}, test: null, problem: null });
});

test("words are searched for, in one piece", () => {
  assert.deepEqual(parseFilter("llama  wsd ").query, { search: "llama wsd" });
  assert.deepEqual(parseFilter(":odd =x").query, { search: ":odd =x" });
});

test("keys are asked of the server", () => {
  const { query, test: rows, problem } = parseFilter("state:running,done project:omk tag:fp8 sweep:lr-grid archived:yes big");
  assert.deepEqual(query, { state: ["running", "completed"], project: "omk", tag: "fp8", sweep: "lr-grid", archived: true, search: "big" });
  assert.equal(rows, null);
  assert.equal(problem, null);
  assert.deepEqual(parseFilter("archived:no").query, { archived: false });
  assert.deepEqual(parseFilter("tag:a:b").query, { tag: "a:b" });
});

test("a key without a value is not asked for: it is still being typed", () => {
  assert.deepEqual(parseFilter("project: state:"), { query: {}, test: null, problem: null });
});

test("what is no key and what is no state is named, with what is valid", () => {
  assert.match(parseFilter("owner:me").problem ?? "", /^owner is not a key of the filter\. Keys: project, state/);
  assert.match(parseFilter("state:runing").problem ?? "", /^runing is not a state\. States: queued/);
  assert.match(parseFilter("state:running,lost").problem ?? "", /^lost is not a state/);
});

test("people's words for states are understood", () => {
  assert.deepEqual(parseFilter("state:waiting,waits").query.state, ["queued", "queued"]);
});

test("numbers are compared by metric, short name and parameter", () => {
  const one = run({ step: 400, gpus: 8, latest: { "train/loss": { value: 2.5, step: 400 }, "val/loss": { value: 2.6, step: 400 }, mfu: { value: 0.49, step: 400 } }, parameters_varied: { "train.optimizer.lr": 3e-4 } });
  for (const text of ["loss<3", "loss>2.4", "loss<=2.5", "loss>=2.5", "loss=2.5", "val>2.5", "mfu>.4", "step=400", "gpus=8", "lr=3e-4", "lr<1e-3", "train.optimizer.lr>1e-4", "loss<3 lr<1e-3 step>=400"]) {
    assert.equal(passes(text, one), true, text);
  }
  for (const text of ["loss<2.5", "loss>2.5", "val<2.6", "step>400", "lr>1e-3", "loss<3 lr>1e-3"]) assert.equal(passes(text, one), false, text);
});

test("a parameter is meant by its last word only where it is a whole one", () => {
  const one = run({ parameters_varied: { "train.optimizer.min_lr": 1e-5 } });
  assert.equal(passes("lr>0", one), false);
  assert.equal(passes("min_lr>0", one), true);
});

test("what a run does not have is never within a limit", () => {
  for (const text of ["loss<3", "loss>0", "loss=0", "lr<1", "nothing<1"]) {
    assert.equal(passes(text, run()), false, text);
    assert.equal(passes(text, run({ latest: { "train/loss": { value: "NaN", step: 1 } }, parameters_varied: { lr: "NaN" } })), false, text);
  }
  assert.equal(passes("loss>3", run({ latest: { "train/loss": { value: "Infinity", step: 1 } } })), true);
});

test("a comparison without a number is searched for as a word", () => {
  assert.deepEqual(parseFilter("lr<").query, { search: "lr<" });
  assert.deepEqual(parseFilter("lr<fast").query, { search: "lr<fast" });
  assert.deepEqual(parseFilter("lr<1e").query, { search: "lr<1e" });
});

test("every operator compares as in arithmetic", () => {
  fc.assert(
    fc.property(fc.integer({ min: -50, max: 50 }), fc.integer({ min: -50, max: 50 }), (value, limit) => {
      const one = run({ latest: { "train/loss": { value, step: 1 } } });
      const expected = { "<": value < limit, ">": value > limit, "<=": value <= limit, ">=": value >= limit, "=": value === limit };
      for (const [operator, holds] of Object.entries(expected)) assert.equal(passes(`loss${operator}${limit}`, one), holds, `${value}${operator}${limit}`);
    }),
  );
});

test("no text makes the filter fail", () => {
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom(..."aloss:<>=.,-+e1 \u00e9\\[(".split("")), maxLength: 30 }), (text) => {
      const { query, test: rows, problem } = parseFilter(text);
      assert.equal(typeof query, "object");
      if (problem === null && rows !== null) assert.equal(typeof rows(run()), "boolean");
    }),
  );
});
