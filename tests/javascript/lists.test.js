/** Rows and lines: runs in order and up to date, trials by rank, specs side by side, logs as shown. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { flatten } from "../../api/lehr_api/dashboard/static/js/format.js";
import { alike, expectation } from "../../api/lehr_api/dashboard/static/js/cluster.js";
import { whyNoSamples } from "../../api/lehr_api/dashboard/static/js/run/details.js";
import { isError, offsetOf, overwritten, shown } from "../../api/lehr_api/dashboard/static/js/run/log_search.js";
import { RunList } from "../../api/lehr_api/dashboard/static/js/runs/list.js";
import { inOrder } from "../../api/lehr_api/dashboard/static/js/sweep/trials.js";
import { progress, timeHeld } from "../../api/lehr_api/dashboard/static/js/status.js";
import { Changes, joined, standing, withNews, withoutCurves } from "../../api/lehr_api/dashboard/static/js/sweep/pages.js";
import { explained, onScaleOf, sentenceOf, variantsOf } from "../../api/lehr_api/dashboard/static/js/compare/ranking.js";
import { trial, run } from "./support.js";

/** @param {...any} runs */
function listOf(...runs) {
  const list = new RunList();
  for (const one of runs) list.runs.set(one.id, one);
  return list;
}

test("an event of a run that is not in the list is not taken into it", () => {
  const list = listOf(run({ id: "a" }));
  assert.equal(list.put(run({ id: "b" })), false);
  assert.equal(list.metrics("b", { "train/loss": { value: 1, step: 1 } }), false);
  assert.equal(list.put(run({ id: "a", state: "completed" })), true);
  assert.deepEqual([...list.runs.values()].map((one) => one.state), ["completed"]);
});

/** @param {{items: any[], next_cursor: string | null, total: number}} page what the server answers */
function answering(page) {
  globalThis.fetch = /** @type {any} */ (async () => new Response(JSON.stringify(page)));
}

test("a refresh takes away the runs that the server's filter no longer lets through", async () => {
  const list = listOf(...["d", "c", "b", "a"].map((id) => run({ id })));
  list.query = { state: ["running"] };
  answering({ items: [run({ id: "e" }), run({ id: "b" })], next_cursor: "2", total: 3 });
  await list.refresh();
  assert.deepEqual([...list.runs.keys()], ["e", "b", "a"]);
  answering({ items: [run({ id: "e" })], next_cursor: null, total: 1 });
  await list.refresh();
  assert.deepEqual([...list.runs.keys()], ["e"]);
  assert.equal(list.total, 1);
});

test("a refresh of a sort moves runs, and one that is not among the first any more stays below", async () => {
  const list = listOf(...["a", "b", "c"].map((id) => run({ id })));
  list.query = { sort: "val" };
  answering({ items: [run({ id: "d" }), run({ id: "b" })], next_cursor: "2", total: 5 });
  await list.refresh();
  assert.deepEqual([...list.runs.keys()], ["d", "b", "a", "c"]);
  assert.equal(list.complete, false);
});

test("an event takes a run away that the filter no longer lets through, and counts it", () => {
  const queries = [{ state: ["running"] }, { tag: "fp8" }, { project: "omk" }, {}];
  const changes = [{ state: "completed" }, { tags: ["other"] }, { project: "other" }, { archived: true }];
  queries.forEach((query, i) => {
    const one = run({ id: "a", tags: ["fp8"], project: "omk", archived: false });
    const list = listOf(one, run({ id: "b" }));
    list.query = query;
    list.total = 2;
    assert.equal(list.put({ ...one, step: 11 }), true);
    assert.deepEqual([...list.runs.keys()], ["a", "b"]);
    assert.equal(list.put({ ...one, ...changes[i] }), true);
    assert.deepEqual([...list.runs.keys()], ["b"]);
    assert.equal(list.total, 1);
  });
  const archived = listOf(run({ id: "a", archived: true }));
  archived.query = { archived: true };
  archived.put(run({ id: "a", archived: true }));
  assert.equal(archived.runs.size, 1);
});

test("new metrics move the step forward, never back, and keep the others", () => {
  const list = listOf(run({ id: "a", step: 50, latest: { mfu: { value: 0.5, step: 50 } } }));
  list.metrics("a", { "train/loss": { value: 2, step: 40 } });
  assert.equal(list.runs.get("a")?.step, 50);
  list.metrics("a", { "train/loss": { value: 2, step: 60 } });
  const after = list.runs.get("a");
  assert.equal(after?.step, 60);
  assert.equal(after?.latest.mfu.value, 0.5);
});

test("a trend's last point follows the loss, and a new one comes with each part of the run", () => {
  const list = listOf(run({ id: "a", step: 0, total_steps: 240 }));
  for (let step = 1; step <= 240; step += 1) list.metrics("a", { "train/loss": { value: step, step } });
  const trend = list.runs.get("a")?.trend ?? [];
  assert.equal(trend.length, 24);
  assert.equal(trend.at(-1), 240);
  list.metrics("a", { "train/loss": { value: 0, step: 100 } });
  assert.deepEqual(list.runs.get("a")?.trend, trend);
});

test("a trend of a run whose number of steps is not known gets a point with each part of the steps so far", () => {
  const list = listOf(run({ id: "a", step: 0, total_steps: 0 }));
  for (let step = 1; step <= 2000; step += 1) list.metrics("a", { "train/loss": { value: step, step } });
  const trend = list.runs.get("a")?.trend ?? [];
  assert.equal(trend.length, 24);
  assert.equal(trend.at(-1), 2000);
  assert.ok(Number(trend[0]) < 1000, `its oldest point is of step ${trend[0]}`);
  assert.equal(progress(run({ step: 5, total_steps: 0 })), null);
});

test("trials come by rank, then those that may yet have one, then the rest", () => {
  const state = (/** @type {string} */ name) => ({ run: run({ state: name }) });
  const trials = [trial(1, state("failed")), trial(2), trial(3, { rank: 2 }), trial(4, state("pruned")), trial(5, { rank: 1 }), trial(6, { rank: 2 }), trial(7, { ...state("failed"), rank: 3 })];
  assert.deepEqual(inOrder(trials).map((one) => one.number), [5, 3, 6, 7, 2, 1, 4]);
  assert.deepEqual(trials.map((one) => one.number), [1, 2, 3, 4, 5, 6, 7]);
});

test("pages of a sweep are one list, with the best trial of a page that was not read", () => {
  const page = (/** @type {number[]} */ numbers, /** @type {string} */ state) => /** @type {any} */ ({ state, trials: numbers.map((number) => trial(number)), best_trials: [trial(9), trial(2)] });
  const whole = joined([page([1, 2], "waiting"), page([3, 4], "running")]);
  assert.deepEqual(whole.trials.map((one) => one.number), [1, 2, 3, 4, 9]);
  assert.equal(whole.state, "running");
});

test("a spec is flat by dotted path, lists and empty objects whole", () => {
  const flat = flatten({ train: { optimizer: { lr: 3e-4, betas: [0.9, 0.95] }, extra: {} }, name: "a", notes: null });
  assert.deepEqual([...flat], [["train.optimizer.lr", 3e-4], ["train.optimizer.betas", [0.9, 0.95]], ["train.extra", {}], ["name", "a"], ["notes", null]]);
});

test("a line of a log is what a terminal would show of it", () => {
  assert.equal(shown("plain"), "plain");
  assert.equal(shown("\u001b[31mred\u001b[0m text"), "red text");
  assert.equal(shown("10 %\r50 %\r100 %"), "100 %");
  assert.equal(shown("windows\r"), "windows");
  assert.equal(shown("\u001b[2K\u001b[1;32mdone\u001b[m\r"), "done");
  assert.equal(shown(""), "");
  assert.equal(overwritten("\r 12%|# | 8/66\u001b[A"), true);
  assert.equal(overwritten("\r   \r\u001b[A\r 20%|## | 1/5"), false);
});

test("the exception at the end of a traceback is an error, and a metric of that name is none", () => {
  for (const line of ["ValueError: boom", "[rank1]: torch.OutOfMemoryError: 2 GiB", "KeyboardInterrupt", "t.py: error: bad", "Killed"]) assert.ok(isError(line), line);
  for (const line of ["no errors", "squared_error 0.5", "MyErrors: 3"]) assert.ok(!isError(line), line);
});

test("a run took the time of its attempts, not that in the queue or in a pause", () => {
  const attempt = (/** @type {number} */ from, /** @type {number | null} */ to) => /** @type {any} */ ({ created_at: from - 5, dispatched_at: from, exited_at: to });
  assert.equal(timeHeld({ attempts: [attempt(100, 400), attempt(1600, 1900)] }), 600);
  assert.equal(timeHeld({ attempts: [attempt(100, 400), attempt(1600, null)] }), 300);
  assert.equal(timeHeld({ attempts: [] }), null);
});

test("neighbours in the queue that wait for the same thing are one row", () => {
  const entry = (/** @type {string} */ name, changes = {}) => /** @type {any} */ ({ name, gpus: 1, nodes: 1, gpu_type: null, priority: 0, reason: "next in line", ...changes });
  const queue = [entry("grid-1"), entry("grid-2"), entry("big", { gpus: 8 }), entry("grid-3"), entry("grid-4", { reason: "waits for 1 x H100" })];
  assert.deepEqual(alike(queue).map((group) => group.map((one) => one.name)), [["grid-1", "grid-2"], ["big"], ["grid-3"], ["grid-4"]]);
  assert.deepEqual(alike([]), []);
});

/** @param {any[]} trials @param {Record<string, any>} [more] @returns {any} */
const sweepOf = (trials, more = {}) => ({ counts: { running: trials.length }, stopped: null, trials, best_trials: [], repetitions: [], standings: [], trials_total: trials.length, next_cursor: null, ...more });
/** @param {number} number @param {number} rank */
const stands = (number, rank) => ({ number, value: rank, step: 10, compared_value: rank, rank, best: rank === 1 });

test("an expected start is told to the minute with its basis, and a missing one with its reason", () => {
  const expected = { expected_start: 3600, expected_because: "a ends" };
  assert.deepEqual(expectation(expected, 0), { text: "in about 1 h", basis: "a ends" });
  assert.deepEqual(expectation(expected, 1200)?.text, "in about 40 m");
  assert.deepEqual(expectation(expected, 9999)?.text, "in about 1 m");
  assert.deepEqual(expectation({ expected_start: null, expected_because: "not measured" }, 0), { text: "—", basis: "not measured" });
  assert.equal(expectation({ expected_start: null, expected_because: "" }, 0), null);
});

test("news of one trial replace it, and rank all others again", () => {
  const before = sweepOf([trial(1, { rank: 1, best: true }), trial(2, { rank: 2 })], { next_cursor: "2" });
  const changed = trial(2, { rank: 1, run: run({ id: "r2", step: 99 }) });
  const found = withNews(before, sweepOf([changed], { standings: [stands(1, 2), stands(2, 1)], trials_total: 1, counts: { completed: 2 } }));
  assert.deepEqual(found?.trials.map((one) => [one.number, one.rank, one.best, one.run.step]), [[1, 2, false, 10], [2, 1, true, 99]]);
  assert.deepEqual([found?.trials_total, found?.next_cursor, found?.counts], [2, "2", { completed: 2 }]);
});

test("news of a sweep with another number of trials are not merged", () => {
  assert.equal(withNews(sweepOf([trial(1)]), sweepOf([trial(1)], { standings: [stands(1, 1), stands(2, 2)] })), null);
});

test("a sweep that ended without a step promises no curves", () => {
  assert.match(withoutCurves({ state: "running" }), /appear with the first step/);
  assert.match(withoutCurves({ state: "finished" }), /no curves/);
});

test("a sweep's figure stays as long as no trial has another value, rank or state", () => {
  const before = sweepOf([trial(1, stands(1, 1))]);
  assert.equal(standing(before), standing(sweepOf([trial(1, { ...stands(1, 1), run: run({ step: 50 }) })])));
  assert.equal(standing(before), standing(sweepOf([], { standings: [stands(1, 1)], counts: { running: 1 } })));
  assert.notEqual(standing(before), standing(sweepOf([trial(1, stands(1, 2))])));
  assert.notEqual(standing(before), standing(sweepOf([trial(1, stands(1, 1))], { counts: { completed: 1 } })));
  assert.notEqual(standing(before), standing(sweepOf([trial(1, stands(1, 1))], { repetitions: [trial(1, stands(1, 1))] })));
});

test("changed runs are named once, and after too many all is read", () => {
  const changes = new Changes();
  assert.equal(changes.take(), null);
  for (const id of ["a", "b", "a"]) changes.add(id);
  assert.deepEqual(changes.take(), ["a", "b"]);
  assert.deepEqual(changes.take(), []);
  for (let i = 0; i < 101; i += 1) changes.add(`r${i}`);
  assert.equal(changes.take(), null);
});

test("a run without samples is explained by its config", () => {
  const sampled = (/** @type {unknown} */ every) => /** @type {any} */ ({ total_steps: 150, spec: { train: { diagnostics: { sample: { every } } } } });
  assert.equal(whyNoSamples(sampled(500)), "It writes one every 500 steps (train.diagnostics.sample.every), but has only 150 steps.");
  assert.match(whyNoSamples(sampled(100)), /none has been reached yet/);
  assert.match(whyNoSamples(sampled(0)), /every is 0/);
  assert.match(whyNoSamples(/** @type {any} */ ({ total_steps: null, spec: {} })), /writes no samples/);
});

test("the log of a step is at the first line that names it, or the newest step before; that of a text at its last line", async () => {
  const lines = ["step 10/50 loss 5", "step 20/50 loss 4", "warning at step 20", "step 1,000 loss 3", "no step", "E: odd", "[rank1]: E: odd", "error: E: odd"];
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ address) => {
    const query = new URL(address, "http://lehr").searchParams;
    const first = Number(query.get("offset"));
    const hits = lines.map((text, offset) => ({ text, offset })).filter(({ text, offset }) => offset >= first && text.includes(query.get("text") ?? ""));
    return new Response(JSON.stringify({ lines: hits.slice(0, 2), next_offset: hits[2]?.offset ?? null }));
  });
  const at = (/** @type {number | string} */ where) => offsetOf("/runs/r1/logs/rank-0.log", 1, where);
  assert.deepEqual(await Promise.all([10, 20, 25, 1000, 9].map(at)), [0, 1, 1, 3, null]);
  assert.deepEqual(await Promise.all(["loss", "nothing", "E: odd"].map(at)), [3, null, 6]);
});

test("variants are ranked by the means of their seeds, without those that diverged", () => {
  const value = (/** @type {string} */ id, /** @type {unknown} */ of) => ({ run_id: id, value: of });
  const gap = (/** @type {string} */ id, /** @type {number | null} */ difference) => ({ run_ids: [id], base_ids: ["a", "b"], difference, half_width: 0.5, sentence: "" });
  const comparison = /** @type {any} */ ({
    goal: "minimize", metric: "val/loss", noise: null, differences: [], runs: [..."abcde"], gaps: [gap("c", -1), gap("d", null), gap("e", 0.25)],
    results: [value("a", 3), value("b", 4), value("c", 2.5), value("d", "NaN"), value("e", 3.75)],
  });
  assert.deepEqual(variantsOf(comparison).map(({ ids, mean }) => [ids.join(""), mean]), [["c", 2.5], ["ab", 3.5], ["e", 3.75]]);
  assert.equal(sentenceOf(comparison, (id) => id), "c is best by 1.000; 2 others, 1 without a value; noise unknown.");
  const diverged = { ...comparison, results: comparison.results.map((/** @type {any} */ one) => ({ ...one, value: "ab".includes(one.run_id) ? "NaN" : one.value })), gaps: comparison.gaps.map((/** @type {any} */ one) => ({ ...one, difference: null })) };
  assert.deepEqual(variantsOf(diverged).map(({ ids }) => ids.join("")), ["c", "e"], "a baseline that diverged leaves the others their order");
  const first = { ...comparison, gaps: [gap("e", 0.25)] };
  assert.match(sentenceOf(first, (id) => id), /^a \(mean of 2 equal runs\) is best by 0.2500;/);
  const seeded = { ...first, differences: [{ path: "train.seed", values: [0, 1, 0, 0, 0] }] };
  assert.match(sentenceOf(seeded, (id) => id), /^a \(mean of 2 seeds\) is best/);
  const highest = { ...comparison, goal: "maximize", noise: 0.1 };
  assert.equal(sentenceOf(highest, (id) => id), "e is best by 0.2500; 2 others, 1 without a value; noise between seeds 0.10.");
  assert.match(sentenceOf({ ...highest, noise_note: "from sweep lr" }, (id) => id), /noise between seeds 0.10, from sweep lr\.$/);
});

test("a setting explains what lies between its values, beyond what chance gives; its own for each run explains nothing", () => {
  assert.equal(explained(["x", "x", "y", "y"], [1, 1, 2, 2]), 1);
  assert.equal(explained(["x", "y", "x", "y"], [1, 1, 2, 2]), 0);
  assert.equal(explained(["x", "y", "z"], [1, 2, 3]), null);
  assert.equal(explained(["x", "x", "y"], [1, 2, null]), null);
  assert.equal(explained(["x", "—", "—"], [4, 2, 2.1]), null, "so does what only one of three has");
  const rates = Array.from({ length: 20 }, (_, i) => i);
  assert.ok((explained(rates, rates) ?? 0) > 0.9);
});

test("a ranking cuts off what would flatten it; of few runs, only what is far", () => {
  const three = [4.358, 4.368, 4.439];
  assert.deepEqual(three.map(onScaleOf(three)), [true, true, true]);
  const few = [4.3, 4.4, 8];
  assert.deepEqual(few.map(onScaleOf(few)), [true, true, false]);
  const many = [4, 4.01, 4.02, 4.03, 4.04, 4.05, 4.06, 4.07, 4.5];
  assert.deepEqual(many.map(onScaleOf(many)), [...many.slice(1).map(() => true), false]);
});
