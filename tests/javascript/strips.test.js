/** Strips of the cluster page: what each GPU did at a time, in words. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { linesOf } from "../../api/lehr_api/dashboard/static/js/node_curves.js";
import { queueOf, wordsAt } from "../../api/lehr_api/dashboard/static/js/strips.js";

/** @param {number} began @param {number} ended @param {string} kind @param {string} [why] */
const seen = (began, ended, kind, why = "") => ({ began, ended, kind, why, gpus: 2, project: null, person: null });
const run = {
  run_id: "r1", name: "big", project: "lr", person: "ada", state: "running", gpus: [0], began: 100, trains_at: 120,
  ended: /** @type {number | null} */ (200),
};
const node = {
  name: "n1", gpus: 2, unused: [{ gpu: 0, began: 160, ended: 190 }], runs: [run, { ...run, run_id: "r2", began: 800, trains_at: null, ended: null }],
  spans: [
    seen(50, 400, "in use"), seen(400, 500, "down", "does not answer"),
    seen(500, 600, "not given out", "excluded: its fans"), seen(700, 1000, "in use"),
  ],
};
const queue = [seen(0, 300, "nothing queued"), seen(300, 900, "waits for 8 GPUs", "wide waits for 8 GPUs (2 free)")];
const history = { began: 0, ended: 1000, nodes: [node], queue, gpu_hours: 1, idle: [] };
const past = { history, ends: new Map([["r2", 1500]]), last: 2000 };
const at = (/** @type {number} */ gpu, /** @type {number} */ time) => wordsAt(past, node, gpu, time);

test("a GPU that a run holds has its name, project and person, and its expected end", () => {
  assert.match(at(0, 150).text, /^big \(lr, ada\), from \d\d:\d\d to \d\d:\d\d$/);
  assert.match(at(0, 170).text, /^big \(lr, ada\), from \d\d:\d\d to \d\d:\d\d; under 5 % used$/);
  assert.match(at(0, 110).text, /^big \(lr, ada\), starting, from/);
  assert.match(at(0, 1400).text, /^big \(lr, ada\), starting, from .*, expected to end at/);
  assert.deepEqual([at(0, 150).run, at(0, 1400).run, at(0, 250).run], ["r1", "r2", null]);
});

test("a GPU without a run has the reason of its node, else of the queue, else says that it is not known", () => {
  assert.deepEqual([150, 350, 450, 550, 650, 950, 1600].map((time) => at(1, time).text), [
    "idle: nothing queued", "idle: wide waits for 8 GPUs (2 free)", "down: does not answer", "idle: excluded: its fans",
    "not recorded: no server ran, or none knew this node", "idle: why is not recorded", "no forecast",
  ]);
});

test("the strip of the queue has the runs with a known start, in their order", () => {
  const entry = (/** @type {string} */ id, /** @type {number | null} */ start) => ({
    position: 1, run_id: id, name: id, project: "lr", gpus: 1, nodes: 1, gpu_type: null, priority: 0, reason: "",
    queued_at: 0, expected_start: start, expected_because: "big ends",
  });
  const { gpus, runs } = queueOf([entry("a", 1100), entry("b", null), entry("c", 1200), entry("d", 3000)], 2000);
  assert.equal(gpus, 2);
  assert.deepEqual(runs.map((one) => [one.run_id, one.gpus, one.began, one.ended]), [["a", [0], 1100, 2000], ["c", [1], 1200, 2000]]);
});

test("curves have a line for each GPU; of more than eight their mean, between the lowest and the highest", () => {
  globalThis.document = /** @type {any} */ ({ documentElement: { dataset: { theme: "light" } } });
  const of = (/** @type {number} */ count) => linesOf("system/gpu_utilization", {
    node: "n1", began: 0, part_s: 60, figures: Object.fromEntries([
      ["system/cpu_utilization", [1, 1, 1]],
      ...Array.from({ length: count }, (_, gpu) => [`system/gpu${gpu}_utilization`, [gpu / 10, null, 1, null]]),
    ]),
  }, 140);
  assert.deepEqual(of(3).map(({ label, metric }) => `${label} ${metric}`), [
    "GPU 0 system/gpu0_utilization", "GPU 1 system/gpu1_utilization", "GPU 2 system/gpu2_utilization",
  ]);
  assert.deepEqual([of(3)[1].curve.x, of(3)[1].curve.y], [[30, 90, 140], [0.1, undefined, 1]]);
  const [mean, ...more] = of(11);
  assert.deepEqual([more.length, mean.label, mean.curve.y], [0, "mean of 11 GPUs", [0.5, undefined, 1]]);
  assert.deepEqual([mean.curve.low, mean.curve.high], [[0, NaN, 1, NaN], [1, NaN, 1, NaN]]);
});
