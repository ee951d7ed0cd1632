/** The page of a run: marks, alerts, facts, code, its note, roles, the tab's title. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { forecastTraces, marksNear } from "../../api/lehr_api/dashboard/static/js/charts/traces.js";
import { commands, contents, otherCode } from "../../api/lehr_api/dashboard/static/js/code.js";
import { refusal } from "../../api/lehr_api/dashboard/static/js/form.js";
import { linked } from "../../api/lehr_api/dashboard/static/js/note.js";
import { configOf } from "../../api/lehr_api/dashboard/static/js/run/config.js";
import { aboutQueue, bestOf, canForkFrom, errorOf, explained, looksAgain, tileNames } from "../../api/lehr_api/dashboard/static/js/run/header.js";
import { marksOf } from "../../api/lehr_api/dashboard/static/js/run/marks.js";
import { stepsOf } from "../../api/lehr_api/dashboard/static/js/run/media.js";
import { packagesOf, startFacts } from "../../api/lehr_api/dashboard/static/js/run/system.js";
import { tabTitle } from "../../api/lehr_api/dashboard/static/js/status.js";
import { curve, run } from "./support.js";

test("a run is forked from a checkpoint that is still there", () => {
  assert.equal(canForkFrom([]), false);
  assert.equal(canForkFrom([{ removed_at: 5 }]), false);
  assert.equal(canForkFrom([{ removed_at: 5 }, { removed_at: null }]), true);
});

test("the page looks again while the run waits, and while it trains", () => {
  const looks = (/** @type {string} */ state, /** @type {number | null} */ step) => looksAgain(run({ state, step }));
  assert.deepEqual([looks("queued", null), looks("queued", 5), looks("running", 5)], [true, true, true]);
  assert.deepEqual([looks("running", null), looks("completed", 5)], [false, false]);
});

test("a forecast is an error bar at the end of the axis, not a longer axis", () => {
  const forecast = { metric: "val/loss", step: 100, value: 3, likely: [2.8, 3.2], sure: [2.5, 3.6], how: "", text: "" };
  const traces = forecastTraces(/** @type {any} */ (forecast), "#112233", [10, 20]);
  assert.deepEqual(traces.map(({ x, y }) => [x, y]), [[[19.9, 19.9], [2.5, 3.6]], [[19.9, 19.9], [2.8, 3.2]], [[19.9], [3]]]);
  assert.deepEqual(forecastTraces(/** @type {any} */ ({ ...forecast, value: null }), "#112233", [10, 20]), []);
});

test("the place in the queue has the expected start and what that rests on", () => {
  const entry = /** @type {any} */ ({ run_id: "r1", position: 3, expected_start: 3700, expected_because: "big-run ends" });
  assert.deepEqual(aboutQueue([entry], "r1", 100), { position: 3, expected: "expected to start in about 1 h, when big-run ends" });
  assert.deepEqual(aboutQueue([{ ...entry, expected_start: null }], "r1", 100), { position: 3, expected: null });
  assert.deepEqual(aboutQueue([entry], "r2", 100), { position: null, expected: null });
});

const explanation = [{ name: "seen", text: "the loss rose" }, { name: "source", text: "Zhang et al. 2022" }];
/** @type {any} */
const diverging = { code: "diverging", step: 1200, message: "the loss rose. Lower the rate", advice: "Lower the rate", sure: "certain", explanation };

test("an alert of the diagnosis has its name, its step, what to try, and its explanation", () => {
  const found = explained(run({ alerts: [diverging.message], diagnosis: [diverging] }), []);
  assert.deepEqual(found, [{ title: "diverging since 1,200 · Lower the rate", step: 1200, certain: true, lines: explanation }]);
});

test("a warning of the trainer, and an alert that is not explained yet, are their text; their step is looked up", () => {
  const texts = ["the loss jumped", "val/loss is nan at step 1,600", "the loss rose again. Lower the rate"];
  const warnings = [event("warning", texts[0], { step: 7 }), event("warning", texts[0], { step: 9 })];
  const found = explained(run({ alerts: texts, diagnosis: [diverging] }), warnings);
  assert.deepEqual(found.map(({ title, step }) => [title, step]), texts.map((text, i) => [text, [9, 1600, null][i]]));
  assert.deepEqual(found.flatMap((one) => one.lines), []);
});

test("the chip of a failure has the last line of the traceback alone", () => {
  const error = "ValueError: shape (3, 4) is not (4, 3)";
  assert.equal(errorOf(`${error} (train.py exited with code 1; lehr logs k3f)`), error);
  assert.equal(errorOf("killed by SIGKILL at step 502"), "killed by SIGKILL at step 502");
});

test("tiles are of what has a value; the best of an evaluation has its step if every point is known", () => {
  const value = { value: 1, step: 5 };
  assert.deepEqual(tileNames(run({ spec: {}, latest: { mfu: value, "train/loss": value, odd: value } })), ["train/loss", "mfu"]);
  const logged = { odd: { value: 1, step: 4 }, loss: value, "train/loss": value, "system/ram_used_bytes": { value: 9, step: 5 } };
  assert.deepEqual(tileNames(run({ spec: { trainer: {} }, latest: logged })), ["train/loss", "odd"]);
  const series = /** @type {any} */ ({ name: "val/loss", goal: "minimize", total_points: 3, step: [100, 200, 300], y: [2, 1.5, "NaN"], low: null, high: null });
  assert.equal(bestOf(series), "best 1.500 @ 200");
  assert.equal(bestOf({ ...series, total_points: 30, low: [2, 1.25, 1.5] }), "best 1.250");
  assert.equal(bestOf({ ...series, name: "train/loss" }), null);
  assert.equal(bestOf({ ...series, goal: "maximize", y: [0.1, 0.3, 0.2] }), "best 0.3000 @ 200");
});

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

const stage = (/** @type {string} */ name, /** @type {number} */ first_step) => ({
  name, first_step, last_step: 9, tokens: 0, sequences: 1, sequence_length: 8,
});

test("the list beside the cursor has the causes of what happened there", () => {
  const marks = marksOf(
    [event("warning", "the loss became NaN", { step: 7 }), event("checkpoint", "", { step: 8 })],
    [{ step: 7, seen: "the loss rises", cause: "a step that was too large" }],
    [stage("main", 1), stage("anneal", 7)],
  );
  assert.deepEqual(marksNear(marks, 7, 1), [
    "step 7: stage anneal begins",
    "step 8: checkpoint saved",
    "step 7: the loss became NaN",
    "step 7: the loss rises. Usual cause: a step that was too large",
  ]);
  const resumed = { ...marks, stages: [], checkpoints: [], alerts: [], resumes: [{ step: 1200, label: "resumes from step 1,200", cause: "node n1 was lost" }] };
  assert.deepEqual(marksNear(resumed, 1200, 0), ["step 1,200: resumes from step 1,200, after: node n1 was lost"]);
});

test("a resume says how many steps were lost, where the replaced points are known", () => {
  const resumes = [{ step: 250, label: "resumes from step 250" }, { step: 400, label: "resumes from step 400" }, { step: 500, label: "resumes from step 500" }];
  const marks = { stages: [], checkpoints: [], alerts: [], resumes };
  const whole = curve([250, 251, 271, 300, 400, 410, 444, 450, 500, 501].map((step) => /** @type {[number, number]} */ ([step, 1])));
  const drawn = { ...whole, superseded: [curve([[251, 2], [271, 2]]), curve([[501, 2]])] };
  assert.deepEqual(marksNear(marks, 250, 0, drawn), ["step 250: resumes from step 250; 21 steps lost"]);
  assert.deepEqual(marksNear(marks, 400, 0, drawn), ["step 400: resumes from step 400"]);
  assert.deepEqual(marksNear(marks, 500, 0, drawn), ["step 500: resumes from step 500; 1 step lost"]);
});

test("counts that a program did not declare are no facts of its device", () => {
  const start = { kind: "started", device: "cpu", parameters: 0, tokens_per_step: 1, total_steps: 300 };
  assert.deepEqual(startFacts(start), [["device", "cpu"], ["total_steps", 300]]);
});

test("installed packages are a list of their own, not rows among the facts", () => {
  const start = { device: "cpu", host: { python: "3.13", distributions: { numpy: "2.1", "a.b": "1" } } };
  assert.deepEqual(startFacts(start), [["device", "cpu"], ["host.python", "3.13"]]);
  assert.deepEqual(packagesOf(start), ["numpy 2.1", "a.b 1"]);
});

const capsule = { digest: "a".repeat(64), bytes: 1, installed: false, files: ["trainer/a.py", "trainer/b.py", "project/c.py"].map((name) => ({ name, bytes: 1 })) };

test("files of the trainer and of the project are counted apart", () => {
  assert.equal(contents(capsule), "3 files: 2 of the trainer, 1 of the project");
  assert.match(contents({ ...capsule, installed: true, files: capsule.files.slice(0, 2) }), /^2 files: the trainer that is installed/);
});

test("a fork is compared with the run that it continues", () => {
  assert.equal(commands({ id: "r2", forked_from: "r1" })[0], "lehr code diff r1 r2");
  assert.equal(commands({ id: "r2", forked_from: null })[0], "lehr code diff OTHER-RUN r2");
});

test("what a program gave to wandb as its config is listed after its spec", () => {
  const sample = { spec: { trainer: { args: { lr: 0.1 } } }, logged_config: { depth: 4 } };
  assert.deepEqual([...configOf(sample)], [["trainer.args.lr", 0.1], ["wandb.config.depth", 4]]);
});

const [A, B] = ["a".repeat(64), "b".repeat(64)];

/** @param {string[]} values */
const compared = (...values) => ({
  runs: values.map((_, i) => `r${i}`),
  differences: [{ path: "code.digest", values, factor: true }],
});

test("runs with the same other code are one comparison", () => {
  assert.deepEqual(otherCode(compared(A, B, A, B), "r0"), { base: A, others: [{ digest: B, runs: ["r1", "r3"] }], without: [] });
  assert.deepEqual(otherCode(compared(A, B, A, B), "r1").others, [{ digest: A, runs: ["r0", "r2"] }]);
});

test("a run without a capsule is named, not compared", () => {
  assert.deepEqual(otherCode(compared(A, "—"), "r0"), { base: A, others: [], without: ["r1"] });
  assert.equal(otherCode(compared("—", B), "r0").base, null);
});

test("runs of the same code have no difference", () => {
  assert.deepEqual(otherCode({ runs: ["r0", "r1"], differences: [] }, "r0"), { base: null, others: [], without: [] });
});

test("an address ends before the full stop of its sentence", () => {
  assert.deepEqual(linked("see https://example.org/a?b=1. Then (http://x.org) <b>"), [
    { text: "see ", href: null },
    { text: "https://example.org/a?b=1", href: "https://example.org/a?b=1" },
    { text: ". Then (", href: null },
    { text: "http://x.org", href: "http://x.org" },
    { text: ") <b>", href: null },
  ]);
});

test("other schemes are no links", () => {
  assert.deepEqual(linked("javascript:alert(1)"), [{ text: "javascript:alert(1)", href: null }]);
});

test("a role may do what it and those below it may", () => {
  const may = (/** @type {string} */ role) => ["viewer", "researcher", "admin"].map((needed) => refusal(needed, { role }) === null);
  assert.deepEqual(may("viewer"), [true, false, false]);
  assert.deepEqual(may("researcher"), [true, true, false]);
  assert.deepEqual(may("admin"), [true, true, true]);
});

test("a refusal names the role that is needed, and the token's", () => {
  assert.equal(refusal("admin", { role: "viewer", person: "anna" }), "Needs the role admin; your token anna has the role viewer.");
});

test("without a known role the server's answer decides", () => {
  assert.equal(refusal("admin", {}), null);
});

test("a state has its sign, and a running one its share", () => {
  assert.equal(tabTitle("x", "running", 0.257), "▶ 25 % x · Lehr");
  assert.equal(tabTitle("x", "running"), "▶ x · Lehr");
  assert.equal(tabTitle("x", "failed", 0.5), "✕ x · Lehr");
  assert.equal(tabTitle("x", "unheard of"), "x · Lehr");
});

test("what is logged is shown at the newest step, or at the last one before the chosen step", () => {
  /** @type {any} */
  const items = [["x", 5], ["y", 9], ["x", 1], ["x", 5]].map(([name, step]) => ({ name, step }));
  const columns = [{ id: "r1", head: null, items }, { id: "r2", head: null, items: [{ ...items[0], step: 3 }] }];
  assert.deepEqual(stepsOf(columns, "x"), { steps: [1, 3, 5], index: 2 });
  assert.deepEqual([4, 3, 1, 0].map((chosen) => stepsOf(columns, "x", chosen).index), [1, 1, 0, 0]);
});
