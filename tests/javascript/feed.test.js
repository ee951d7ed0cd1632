/** The points of a run: fetched once after its end, and again when it is tried again. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { Feed } from "../../api/lehr_api/dashboard/static/js/charts/feed.js";
import { boardRuns, boardSign } from "../../api/lehr_api/dashboard/static/js/sweep/axis.js";
import { run, trial } from "./support.js";

const READING = /** @type {const} */ ({ x: "step", smooth: 0, old: false, range: null });

/**
 * A server with one metric, and the requests for its points.
 *
 * @param {[number, number][]} points step and value
 */
function serving(points) {
  const server = { points, asked: /** @type {string[]} */ ([]) };
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ address) => {
    if (address.includes("/metrics")) return new Response(JSON.stringify([{ name: "val/loss" }]));
    server.asked.push(address);
    const from = Number(new URL(address, "http://lehr").searchParams.get("from") ?? 0);
    const found = server.points.filter(([step]) => step >= from);
    const steps = found.map(([step]) => step);
    return new Response(JSON.stringify([{ name: "val/loss", step: steps, x: steps, y: found.map(([, y]) => y), low: null, high: null, superseded: [] }]));
  });
  return server;
}

/** @param {Feed} feed */
const steps = (feed) => feed.curves.get("val/loss")?.step;

test("of a run that has ended, points are fetched once more, and then never again", async () => {
  const server = serving([[1, 3], [2, 2]]);
  const feed = new Feed("r1", ["val/loss"]);
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: false });
  server.points.push([3, 1]);
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  assert.deepEqual(steps(feed), [1, 2, 3]);
  const before = server.asked.length;
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  assert.equal(server.asked.length, before);
});

test("a metric that an ended run does not have is not asked for again", async () => {
  const server = serving([[1, 3]]);
  const feed = new Feed("r1", ["val/loss"]);
  await feed.follow(["val/loss", "other"], READING, { attempt: 1, ended: true });
  const before = server.asked.length;
  await feed.follow(["val/loss", "other"], READING, { attempt: 1, ended: true });
  assert.equal(server.asked.length, before);
});

test("points that came after the end are fetched when they are announced", async () => {
  const server = serving([[1, 3]]);
  const feed = new Feed("r1", ["val/loss"]);
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  server.points.push([2, 2]);
  feed.announce();
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  assert.deepEqual(steps(feed), [1, 2]);
});

test("a run that is tried again is read from its beginning, and followed", async () => {
  const server = serving([[1, 3], [2, 2]]);
  const feed = new Feed("r1", ["val/loss"]);
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  server.points = [[1, 5]];
  await feed.follow(["val/loss"], READING, { attempt: 2, ended: false });
  assert.deepEqual([steps(feed), feed.curves.get("val/loss")?.y], [[1], [5]]);
  server.points.push([2, 4]);
  await feed.follow(["val/loss"], READING, { attempt: 2, ended: false });
  assert.deepEqual(steps(feed), [1, 2]);
});

/** @param {Record<string, any>[]} runs @returns {any} */
const sweepOf = (runs) => ({ parameters: ["train.optimizer.lr"], repetitions: [], trials: runs.map((changes, i) => trial(i + 1, { parameters: { "train.optimizer.lr": 10 ** -i }, run: run({ id: `r${i + 1}`, attempt: 1, ended_at: null, ...changes }) })) });

test("the curves of a sweep know which trials have ended, and by which attempt", () => {
  const sweep = sweepOf([{ state: "completed", ended_at: 9 }, {}]);
  const runs = boardRuns(sweep, "train.optimizer.lr", new Set(["r2"]));
  assert.deepEqual(runs.map(({ id, ended, attempt, hidden }) => [id, ended, attempt, hidden]), [["r1", true, 1, false], ["r2", false, 1, true]]);
});

test("curves are drawn again when a trial ends or is tried again", () => {
  const sign = (/** @type {Record<string, any>} */ changes) => boardSign("lr", boardRuns(sweepOf([changes]), "lr", new Set()));
  assert.equal(sign({}), sign({ step: 11 }));
  assert.notEqual(sign({}), sign({ ended_at: 9 }));
  assert.notEqual(sign({}), sign({ attempt: 2 }));
  assert.notEqual(sign({ ended_at: 9 }), sign({ ended_at: 9, state: "pruned" }));
});

test("a repetition of a trial has a curve, in the group, colour and dash of its trial; other parameters use all dashes", () => {
  const sweep = sweepOf([{}, {}, {}]);
  sweep.parameters.push("width");
  sweep.trials.forEach((/** @type {any} */ one, /** @type {number} */ i) => Object.assign(one.parameters, { width: i }));
  sweep.repetitions = [{ ...sweep.trials[2], run: run({ id: "s" }), parameters: { ...sweep.trials[2].parameters, "train.seed": 7 } }];
  Object.assign(globalThis, { document: { documentElement: { dataset: {} } } });
  const runs = boardRuns(sweep, "train.optimizer.lr", new Set());
  assert.deepEqual(runs.map(({ id, stroke }) => [id, stroke().dash]), [["r1", "solid"], ["r2", "dash"], ["r3", "dashdot"], ["s", "dashdot"]]);
  assert.deepEqual([runs[3].group, runs[3].label], [runs[2].group, `${runs[2].label}, seed 7`]);
});
