/** Which runs have a row, whose curves are drawn, and which columns appear by themselves: the paths that tell runs apart. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { varyingPaths } from "../../api/lehr_api/dashboard/static/js/runs/configs.js";
import { drawnOf } from "../../api/lehr_api/dashboard/static/js/runs/beside.js";
import { grouped, unfolded, withCurves, withRows } from "../../api/lehr_api/dashboard/static/js/runs/groups.js";
import { Configs } from "../../api/lehr_api/dashboard/static/js/runs/configs.js";
import { run } from "./support.js";

const [LR, DECAY, SEED] = ["train.optimizer.lr", "train.optimizer.weight_decay", "train.seed"];
const [WIDTH, DEPTH] = ["train.model.hidden_size", "train.model.num_hidden_layers"];

/**
 * @param {Record<string, any[]>} differing values of each path, by run
 * @param {string[][]} varied by run, the paths that its sweep varies
 */
function pathsOf(differing, varied) {
  const ids = varied.map((_, i) => `r${i}`);
  const configs = new Configs();
  configs.take({ runs: ids, same: {}, differing, metrics: {} });
  return varyingPaths(ids.map((id, i) => run({ id, parameters_varied: Object.fromEntries(varied[i].map((path) => [path, 0])) })), configs);
}

test("the seed comes last, though a sweep varies it", () => {
  const varied = [[LR, DECAY], [LR, DECAY], [LR, DECAY], [LR, DECAY], [SEED], [SEED]];
  const found = pathsOf({ [SEED]: [0, 0, 0, 0, 1, 2], [DECAY]: [0, 0, 0.1, 0.1, 0, 0], [LR]: [1, 2, 1, 2, 1, 1] }, varied);
  assert.equal(found.at(-1), SEED);
});

test("of paths that a sweep varies, the one that separates most runs is first", () => {
  const varied = Array.from({ length: 6 }, () => [DECAY, LR]);
  assert.deepEqual(pathsOf({ [DECAY]: [0, 0, 0, 1, 1, 1], [LR]: [1, 2, 3, 1, 2, 3] }, varied), [LR, DECAY]);
});

test("of paths that change together, one comes before all others", () => {
  const found = pathsOf({ [WIDTH]: [64, 64, 128, 128], [DEPTH]: [2, 2, 4, 4], [SEED]: [0, 1, 0, 1] }, [[], [], [], []]);
  assert.deepEqual(found, [WIDTH, SEED, DEPTH]);
});

test("runs that are all alike have no such column", () => {
  assert.deepEqual(pathsOf({ [LR]: [1, 1] }, [[LR], [LR]]), []);
});

test("trials of a folded sweep have no row, so that no config is fetched of them, and the best or newest stands for it", () => {
  const runs = [run({ id: "a", sweep_id: "s" }), run({ id: "b", sweep_id: "s" }), run({ id: "c" }), run({ id: "d", sweep_id: "t" })];
  const items = (/** @type {string | null} */ best) => grouped(runs, (id) => id === "t", () => best);
  assert.deepEqual(withRows(items(null)).map(({ id }) => id), ["c", "d"]);
  assert.deepEqual(["b", null].map((best) => withCurves(items(best)).map(({ id }) => id)), [["b", "c", "d"], ["a", "c", "d"]]);
  const { runs: drawn, note } = drawnOf([...withCurves(items("b")), run({ id: "e", step: null })], false, { total: 5, folded: true });
  assert.deepEqual(drawn.map(({ id }) => id), ["b", "c", "d"]);
  assert.match(note, /^The curves of 3 of 5 runs: .* Unfold a sweep/);
  assert.equal(drawnOf(Array.from({ length: 20 }, (_, i) => run({ id: `r${i}` })), false, { total: 38, folded: true }).note, "");
});

test("the note above the curves has the count of the table, not of the runs that are loaded", () => {
  const listed = Array.from({ length: 60 }, (_, i) => run({ id: `r${i}` }));
  assert.match(drawnOf(listed, false, { total: 83, folded: false }).note, /^The curves of the first 20 of 83 runs\./);
  assert.equal(drawnOf(listed, true, { total: 60, folded: false }).note, "");
  assert.deepEqual(drawnOf([], false, { total: 0, folded: false }), { runs: [], note: "" });
});

test("the newest sweep that has trained is unfolded, not one of seeds; with a filter each with a match, unless it is large", () => {
  const trial = (/** @type {string} */ sweep, /** @type {string} */ path, changes = {}) => run({ sweep_id: sweep, parameters_varied: { [path]: 1 }, ...changes });
  const runs = [trial("waits", LR, { step: null }), trial("seeds", SEED), trial("grid", LR), trial("old", LR)];
  assert.deepEqual([...unfolded(runs, false)], ["grid"]);
  const large = Array.from({ length: 17 }, () => trial("large", LR));
  assert.deepEqual([...unfolded([...large, ...runs], true)], ["waits", "seeds", "grid", "old"]);
});
