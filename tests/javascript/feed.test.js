/** Points of curves: fetched once for many runs, and appended. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ask, Feed } from "../../api/lehr_api/dashboard/static/js/charts/feed.js";
import { fetchRuns } from "../../api/lehr_api/dashboard/static/js/runs/list.js";
import { boardRuns, boardSign, looksOf } from "../../api/lehr_api/dashboard/static/js/sweep/axis.js";
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
    server.asked.push(address);
    const from = Number(new URL(address, "http://lehr").searchParams.get("from") ?? 0);
    const found = server.points.filter(([step]) => step >= from);
    const steps = found.map(([step]) => step);
    const [run_id, ...more] = (new URL(address, "http://lehr").searchParams.get("run") ?? "").split(",");
    return new Response(JSON.stringify([{ run_id, members: 1 + more.length, name: "val/loss", step: steps, x: steps, y: found.map(([, y]) => y), low: null, high: null, superseded: [] }]));
  });
  return server;
}

/** @param {Feed} feed */
const steps = (feed) => feed.curves.get("val/loss")?.step;

test("of a run that has ended, points are fetched once more, and then never again", async () => {
  const server = serving([[1, 3], [2, 2]]);
  const feed = new Feed("r1");
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
  const feed = new Feed("r1");
  await feed.follow(["val/loss", "other"], READING, { attempt: 1, ended: true });
  const before = server.asked.length;
  await feed.follow(["val/loss", "other"], READING, { attempt: 1, ended: true });
  assert.equal(server.asked.length, before);
});

test("points that came after the end are fetched when they are announced", async () => {
  const server = serving([[1, 3]]);
  const feed = new Feed("r1");
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  server.points.push([2, 2]);
  feed.final.clear();
  await feed.follow(["val/loss"], READING, { attempt: 1, ended: true });
  assert.deepEqual(steps(feed), [1, 2]);
});

test("a run that is tried again is read from its beginning, and followed", async () => {
  const server = serving([[1, 3], [2, 2]]);
  const feed = new Feed("r1");
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
  const runs = boardRuns(sweep, looksOf(sweep, "train.optimizer.lr"), new Set(["r2"]));
  assert.deepEqual(runs.map(({ id, ended, attempt, hidden }) => [id, ended, attempt, hidden]), [["r1", true, 1, false], ["r2", false, 1, true]]);
});

test("curves are drawn again when a trial ends or is tried again", () => {
  const sign = (/** @type {Record<string, any>} */ changes) => boardSign(boardRuns(sweepOf([changes]), looksOf(sweepOf([changes]), "lr"), new Set()));
  assert.equal(sign({}), sign({ step: 11 }));
  assert.notEqual(sign({}), sign({ ended_at: 9 }));
  assert.notEqual(sign({}), sign({ attempt: 2 }));
  assert.notEqual(sign({ ended_at: 9 }), sign({ ended_at: 9, state: "pruned" }));
});

test("colours show the parameter beside the one on the axis, dashes another with few values; repetitions are as their trials", () => {
  const sweep = sweepOf([{}, {}, {}]);
  Object.assign(globalThis, { document: { documentElement: { dataset: {} } } });
  const looks = () => boardRuns(sweep, looksOf(sweep, "train.optimizer.lr"), new Set()).map(({ stroke }) => stroke);
  const colours = () => new Set(looks().map(({ colour }) => colour)).size;
  assert.deepEqual([colours(), looks().map(({ dash }) => dash)], [3, ["solid", "solid", "solid"]]);
  sweep.parameters.push("width", "name");
  sweep.trials.forEach((/** @type {any} */ one, /** @type {number} */ i) => Object.assign(one.parameters, { width: i % 2, name: "abc"[i] }));
  sweep.repetitions = [{ ...sweep.trials[2], run: run({ id: "s" }), parameters: { ...sweep.trials[2].parameters, "train.seed": 7 } }];
  assert.deepEqual([colours(), looks().map(({ dash }) => dash)], [2, ["solid", "dash", "dashdot", "dashdot"]]);
  const runs = boardRuns(sweep, looksOf(sweep, "train.optimizer.lr"), new Set());
  assert.deepEqual([runs[3].group, runs[3].label], [runs[2].group, `${runs[2].label}, seed 7`]);
});

/**
 * Answer requests, and note their addresses.
 *
 * @param {(address: URL) => [number, any]} answer
 */
function answering(answer) {
  /** @type {string[]} */
  const asked = [];
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ text) => {
    asked.push(text.replace("/api/v1", ""));
    const [status, body] = answer(new URL(text, "http://lehr"));
    return new Response(JSON.stringify(body), { status });
  });
  return asked;
}

/** @param {URL} address */
const runsOf = (address) => address.searchParams.getAll("run");

test("what is asked of several runs in one moment is one request", async () => {
  const asked = answering((address) => [200, runsOf(address).map((id) => ({ run_id: id, name: "loss", of: address.pathname }))]);
  const found = await Promise.all(["a", "b"].map((id) => ask(id, { name: ["loss"] })));
  assert.deepEqual(asked, ["/series?name=loss&run=a&run=b"]);
  assert.deepEqual(found.map((one) => one.map((part) => part.run_id)), [["a"], ["b"]]);
});

test("each run has its own first x", async () => {
  const asked = answering((address) => [200, runsOf(address).map((id) => ({ run_id: id }))]);
  await Promise.all([ask("a", { name: "loss" }, 3), ask("b", { name: "loss" }, 5), ask("c", { name: "loss" })]);
  assert.deepEqual(asked, ["/series?name=loss&run=a&run=b&from=3&from=5", "/series?name=loss&run=c"]);
});

test("the mean of a group is asked for with its members, beside the curve of one of them", async () => {
  const asked = answering((address) => [200, runsOf(address).map((ids) => ({ run_id: ids.slice(0, 1), members: ids.length > 1 ? 2 : 1 }))]);
  const found = await Promise.all([ask("a,b", {}), ask("a", {})]);
  assert.deepEqual([asked, found.map((all) => all.at(-1).members)], [["/series?run=a%2Cb&run=a"], [2, 1]]);
});

test("a group of which one run alone has the metric has its curve", async () => {
  answering(() => [200, [{ run_id: "b", members: 1 }]]);
  assert.deepEqual(await ask("a,b", {}), [{ run_id: "b", members: 1 }]);
});

test("a group is read anew while its runs train, and with another member; the curve stays until the next is here", async () => {
  const server = serving([[1, 3], [2, 2]]);
  const feed = new Feed("r1,r2");
  const group = { members: ["r1", "r2"] };
  await feed.follow(["val/loss"], READING, group);
  await feed.follow(["val/loss"], READING, group);
  assert.deepEqual(server.asked.filter((address) => address.includes("from=")), []);
  await feed.follow(["val/loss"], READING, { ...group, ended: true });
  const before = server.asked.length;
  await feed.follow(["val/loss"], READING, { ...group, ended: true });
  assert.equal(server.asked.length, before);
  const more = feed.follow(["val/loss"], READING, { members: ["r1", "r2", "r3"], ended: true });
  assert.deepEqual(steps(feed), [1, 2]);
  await more;
  assert.match(server.asked.at(-1) ?? "", /run=r1%2Cr2%2Cr3/);
});

test("where fewer lines leave room for twice as many points, they are fetched", async () => {
  const server = serving([[1, 3]]);
  const feed = new Feed("r1");
  for (const points of [50, 80, 100, 60]) await feed.follow(["val/loss"], { ...READING, points }, { ended: true });
  assert.deepEqual(server.asked.map((address) => new URL(address, "http://lehr").searchParams.get("points")), ["50", "100"]);
});

test("a metric that a live run does not have is asked for again when it has it", async () => {
  const server = serving([[1, 3]]);
  const feed = new Feed("r1");
  await feed.follow(["other"], READING, {});
  const before = server.asked.length;
  await feed.follow(["other"], READING, {});
  assert.equal(server.asked.length, before);
  await feed.follow(["other"], READING, { metrics: ["other"] });
  assert.equal(server.asked.length, before + 1);
});

test("different questions are different requests, and so many runs are divided", async () => {
  const asked = answering((address) => [200, runsOf(address).map((id) => ({ run_id: id }))]);
  const found = await Promise.all([...Array.from({ length: 105 }, (_, i) => ask(`r${i}`, {})), ask("r1", { x: "time" }), ask("r2", { x: "time" })]);
  assert.deepEqual(asked.map((address) => address.split("run=").length - 1), [100, 5, 2]);
  assert.deepEqual(found[104], [{ run_id: "r104" }]);
});

test("one run that is gone does not take the others along", async () => {
  answering((address) => {
    const gone = [...runsOf(address), ...address.pathname.split("/")].includes("gone");
    return gone ? [404, { code: "not_found", detail: "no run gone" }] : [200, [{ run_id: "a" }]];
  });
  const [one, other] = await Promise.allSettled([ask("a", {}), ask("gone", {})]);
  assert.deepEqual(one, { status: "fulfilled", value: [{ run_id: "a" }] });
  assert.equal(other.status, "rejected");
});

test("a comparison opens with one request for its runs, and asks alone only for names", async () => {
  const asked = answering((address) => {
    if (address.pathname.endsWith("/runs")) return [200, { items: [{ id: "b" }, { id: "a" }] }];
    return address.pathname.endsWith("/named") ? [200, { id: "c" }] : [404, { detail: "no run nobody" }];
  });
  const { found, missing } = await fetchRuns(["a", "b", "named", "nobody"]);
  assert.deepEqual(found.map(({ id }) => id), ["a", "b", "c"]);
  assert.match(String(missing), /no run nobody/);
  assert.deepEqual(asked, ["/runs?run=a&run=b&run=named&run=nobody&limit=4", "/runs/named", "/runs/nobody"]);
});
