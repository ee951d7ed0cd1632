/** Marks on the curves of a run: where something happened, and why. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { marksNear } from "../../api/lehr_api/dashboard/static/js/charts/traces.js";
import { marksOf } from "../../api/lehr_api/dashboard/static/js/run/marks.js";
import { curve } from "./support.js";

/** @param {string} kind @param {string} message @param {Record<string, any>} [rest] @returns {any} */
const event = (kind, message, rest = {}) => ({ at: 0, kind, message, attempt: 1, step: null, data: {}, ...rest });
/** @param {string} from @param {string} to @param {string} why @param {number} [attempt] */
const moved = (from, to, why, attempt = 1) => event("transition", `${from} -> ${to}: ${why}`, { attempt, data: { from, to } });

test("a resume says why the attempt before ended", () => {
  const events = [
    moved("starting", "running", "its first step"),
    event("checkpoint", "checkpoint at step 200 (interval)", { step: 200 }),
    moved("running", "queued", "killed by SIGKILL at step 502"),
    moved("queued", "starting", "placed on n1", 2),
    event("resumed", "resumes from step 200 (step-00000200)", { step: 200, attempt: 2 }),
  ];
  assert.deepEqual(marksOf(events, []).resumes, [{ step: 200, label: "resumes from step 200 (step-00000200)", cause: "killed by SIGKILL at step 502" }]);
});

test("a resume after a pause has the words of the pause, not those of the way back", () => {
  const events = [moved("running", "stopping", "pause requested"), moved("stopping", "paused", "paused by ann"), moved("paused", "queued", "resume requested"), event("resumed", "resumes from step 10", { step: 10, attempt: 2 })];
  assert.equal(marksOf(events, []).resumes[0].cause, "paused by ann");
  // The clock of its node may be behind that of the server.
  assert.equal(marksOf([...events.slice(-1), ...events.slice(0, -1)], []).resumes[0].cause, "paused by ann");
  // A fork resumes from another run's checkpoint: nothing has ended before.
  assert.equal(marksOf(events.slice(-1), []).resumes[0].cause, undefined);
});

test("the list beside the cursor has the causes of what happened there", () => {
  const marks = marksOf(
    [event("warning", "the loss became NaN", { step: 7 }), event("checkpoint", "", { step: 8 })],
    [{ step: 7, seen: "the loss rises", cause: "a step that was too large" }],
  );
  assert.deepEqual(marksNear(marks, 7, 1), [
    "step 8: checkpoint saved",
    "step 7: the loss became NaN",
    "step 7: the loss rises. Usual cause: a step that was too large",
  ]);
  const resumed = { ...marks, checkpoints: [], alerts: [], resumes: [{ step: 1200, label: "resumes from step 1,200", cause: "node n1 was lost" }] };
  assert.deepEqual(marksNear(resumed, 1200, 0), ["step 1,200: resumes from step 1,200, after: node n1 was lost"]);
});

test("a resume says how many steps were lost, where the replaced points are known", () => {
  const resumes = [{ step: 250, label: "resumes from step 250" }, { step: 400, label: "resumes from step 400" }, { step: 500, label: "resumes from step 500" }];
  const marks = { checkpoints: [], alerts: [], resumes };
  const whole = curve([250, 251, 271, 300, 400, 410, 444, 450, 500, 501].map((step) => /** @type {[number, number]} */ ([step, 1])));
  const drawn = { ...whole, superseded: [curve([[251, 2], [271, 2]]), curve([[501, 2]])] };
  assert.deepEqual(marksNear(marks, 250, 0, drawn), ["step 250: resumes from step 250; 21 steps lost"]);
  assert.deepEqual(marksNear(marks, 400, 0, drawn), ["step 400: resumes from step 400"]);
  assert.deepEqual(marksNear(marks, 500, 0, drawn), ["step 500: resumes from step 500; 1 step lost"]);
});
