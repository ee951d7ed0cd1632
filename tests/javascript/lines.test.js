/** Lines of charts, what the cursor shows of them, and how charts are grouped and offered. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { endsOf } from "../../api/lehr_api/dashboard/static/js/charts/chart.js";
import { Frames, symbol } from "../../api/lehr_api/dashboard/static/js/charts/drawing.js";
import { isComputed, metricsIn, partsOf, spread } from "../../api/lehr_api/dashboard/static/js/charts/expression.js";
import { alike, gathered, keyOf, linesOf, ownParts, roomy } from "../../api/lehr_api/dashboard/static/js/charts/lines.js";
import { byNumber, grouped, groupOf } from "../../api/lehr_api/dashboard/static/js/charts/metric_groups.js";
import { completions, meaningOf, problemOf } from "../../api/lehr_api/dashboard/static/js/charts/search.js";
import { sampleAt } from "../../api/lehr_api/dashboard/static/js/charts/tip.js";
import { heatAxis, heatTraces } from "../../api/lehr_api/dashboard/static/js/charts/traces.js";
import { ownFromAddress, ownToAddress, whyNot } from "../../api/lehr_api/dashboard/static/js/charts/toolbar.js";
import { along } from "../../api/lehr_api/dashboard/static/js/colour.js";
import { curve, fc } from "./support.js";

const points = curve([[1, 2], [2, 1]]);
const line = { run: "a", label: "lr 1", colour: "red", dash: /** @type {const} */ ("solid"), curve: points };
const look = { x: /** @type {const} */ ("step"), logx: false, logy: false, band: true, span: /** @type {[number, number]} */ ([1, 2]) };
const drawn = { lines: [line], look };

test("a chart with the same curves and look is alike, whatever objects they are in", () => {
  assert.ok(alike(drawn, { lines: [{ ...line }], look: { ...look, span: [1, 2] } }));
  assert.ok(!alike(undefined, drawn));
});

test("another curve, line or look is not alike", () => {
  const others = [
    { lines: [], look },
    { lines: [line, line], look },
    { lines: [{ ...line, curve: { ...points } }], look },
    { lines: [{ ...line, run: "b" }], look },
    { lines: [{ ...line, label: "lr 2" }], look },
    { lines: [{ ...line, colour: "blue" }], look },
    { lines: [{ ...line, dash: /** @type {const} */ ("dash") }], look },
    { lines: [{ ...line, cut: true }], look },
    { lines: [{ ...line, metric: "mfu" }], look },
    { lines: [line], look: { ...look, x: /** @type {const} */ ("time") } },
    { lines: [line], look: { ...look, logx: true } },
    { lines: [line], look: { ...look, logy: true } },
    { lines: [line], look: { ...look, band: false } },
    { lines: [line], look: { ...look, span: /** @type {[number, number]} */ ([1, 3]) } },
    { lines: [line], look: { ...look, span: null } },
  ];
  for (const other of others) assert.ok(!alike(drawn, other), JSON.stringify(other));
});

test("the end of a growing axis has room for some points, and stays while they come", () => {
  assert.deepEqual(roomy([0, 330]), [0, 336]);
  assert.deepEqual(roomy([1, 330]), [1, 337]);
  assert.deepEqual([331, 334, 336, 337].map((last) => roomy([0, last])?.[1]), [336, 336, 336, 344]);
  assert.equal(roomy(null), null);
  fc.assert(fc.property(fc.double({ min: 0, max: 1e9, noNaN: true }), fc.double({ min: 1e-3, max: 1e12, noNaN: true }), (first, length) => {
    const last = first + length;
    fc.pre(last > first);
    const [from, to] = roomy([first, last]) ?? [NaN, NaN];
    assert.equal(from, first);
    assert.ok(to >= last - 1e-6 * length && to <= last + (last - first) / 31, `${first} ${last} ${to}`);
  }));
});


const BOTH = "train/loss, val/loss";
/** @type {Record<string, any>} */
const CURVES = { "r1 train/loss": curve([[1, 3]]), "r1 val/loss": curve([[1, 4]]), "r2 train/loss": curve([[1, 5]]), "r2 val/loss": curve([[1, 6]]), "r3 train/loss": curve([[1, 7]]) };
/** @param {{id: string}} run @param {string} name */
const curveOf = ({ id }, name) => CURVES[`${id} ${name}`];
/** @param {string} id @param {Record<string, any>} [rest] @returns {any} */
const run = (id, rest = {}) => ({ id, label: id, stroke: { colour: "#3f90da", dash: "solid" }, ...rest });

test("a chart has several metrics or expressions, with commas between them", () => {
  assert.deepEqual(partsOf(" train/loss ,val/loss "), ["train/loss", "val/loss"]);
  assert.deepEqual(metricsIn("exp(val/loss), train/loss, val/loss"), ["val/loss", "train/loss"]);
  assert.deepEqual(["train/loss", "train/loss,", "a - b", BOTH].map(isComputed), [false, false, true, true]);
  assert.deepEqual([BOTH, "a, b - c", "a, b -", "a, 3", "a, b c"].map((one) => problemOf(one) === null), [true, true, false, false, false]);
});

test("the metrics of one run have a colour each, and its own comes first", () => {
  const lines = linesOf(BOTH, [run("r1")], curveOf);
  assert.deepEqual(lines.map(({ label, metric, curve: { y } }) => [label, metric, y[0]]), [["train/loss", "train/loss", 3], ["val/loss", "val/loss", 4]]);
  assert.equal(lines[0].colour, "#3f90da");
  assert.equal(new Set(lines.map(({ colour }) => colour)).size, 2);
});

test("the metrics of several runs have the colours of the runs, and a dash each", () => {
  const lines = linesOf(BOTH, [run("r1"), run("r2"), run("r3")], curveOf);
  assert.deepEqual(lines.map(({ label, dash }) => [label, dash]), [["r1 · train/loss", "solid"], ["r2 · train/loss", "solid"], ["r3 · train/loss", "solid"], ["r1 · val/loss", "dash"], ["r2 · val/loss", "dash"]]);
  assert.deepEqual(new Set(lines.map(({ colour }) => colour)), new Set(["#3f90da"]));
});

test("a chart of one metric has a line for each run that has it", () => {
  const lines = linesOf("train/loss", [run("r1"), run("r9")], curveOf);
  assert.deepEqual(lines.map(({ run: id, label, dash, metric }) => [id, label, dash, metric]), [["r1", "r1", "solid", undefined]]);
});

test("runs of a group are one line, their mean, in the order of their first", () => {
  const runs = [run("a", { group: "lr 1", metrics: ["x"], attempt: 1, ended: true, parent: "p" }), run("b"), run("c", { group: "lr 1", metrics: ["y"], attempt: 2, ended: false, parent: "q" }), run("d", { group: "lr 2" })];
  assert.deepEqual(gathered(runs, null), runs);
  const [one, alone, other] = gathered(runs, "seeds");
  assert.deepEqual([one.id, one.members, one.label, one.metrics, one.attempt, one.ended, one.parent], ["a", ["a", "c"], "lr 1", ["x", "y"], 3, false, null]);
  assert.deepEqual([alone, other.members], [runs[1], ["d"]]);
});

test("the label of a mean says how many runs it is of, and who dropped out", () => {
  const group = gathered([run("r1", { group: "g" }), run("r2", { group: "g" })], "runs");
  const label = (/** @type {any} */ of, name = "train/loss") => linesOf(name, group, () => ({ ...points, ...of })).map((one) => one.label);
  assert.deepEqual(label({ members: 2, dropouts: "" }), ["g, 2 runs"]);
  assert.deepEqual(label({ members: 2, dropouts: "1 diverged at step 3" }, BOTH)[1], "val/loss, 2 runs, 1 diverged at step 3");
  assert.deepEqual(label({ members: 1 }), ["g, one run"]);
  assert.deepEqual(label({}), ["g, 2 runs"], "of an expression");
});

test("settings of a chart with several metrics are kept in the address", () => {
  const own = new Map([[BOTH, { log: true }], ["a", { all: true }]]);
  assert.deepEqual([...ownFromAddress(ownToAddress(own)).keys()], [BOTH, "a"]);
});

/** @param {number} step @param {number} [attempt] @returns {any} */
const sample = (step, attempt = 1) => ({ step, attempt });

test("the sample of a step is the newest by then, of the newest attempt", () => {
  const samples = [sample(100), sample(300), sample(200), sample(200, 2)];
  assert.deepEqual(sampleAt(samples, 250), sample(200, 2));
  assert.deepEqual(sampleAt(samples, 300), sample(300));
  assert.equal(sampleAt(samples, 99), null);
});

test("a metric is grouped by its prefix, or by what it measures", () => {
  assert.equal(groupOf("train/loss"), "train");
  assert.equal(groupOf("tokens_per_s"), "speed");
  assert.equal(groupOf("step"), "other");
});

test("numbers in names are in order by their size", () => {
  assert.deepEqual(["layer.10", "layer.2", "layer.1"].sort(byNumber), ["layer.1", "layer.2", "layer.10"]);
  assert.deepEqual(grouped(["block10/x", "block9/x"]).map(([name]) => name), ["block9", "block10"]);
});

test("one field finds charts by a pattern, and adds those of several metrics", () => {
  const names = ["norm/0.attn.q", "norm/1.attn.q", "train/loss", "val/loss"];
  const means = (/** @type {string} */ text) => {
    const { adds, pattern, problem } = meaningOf(text, names);
    return adds ? "adds" : problem ?? names.filter((name) => pattern?.test(name) ?? true).length;
  };
  assert.deepEqual(["", "loss", "^val/", "(train|val)/", "train/.*", "zzz"].map(means), [4, 2, 1, 2, 1, 0]);
  assert.deepEqual(["train/loss, val/loss", "val/loss - train/loss", "norm/*.attn.q", "val/loss * 2"].map(means), Array(4).fill("adds"));
  assert.deepEqual(["train/loss -", "(", "train/loss, val/los"].map(means), ["It ends too early.", "not a regular expression", "No run here has val/los. Did you mean val/loss?"]);
  assert.equal(meaningOf("train/loss - va", names).pattern, null, "until it is complete, all charts are shown");
  assert.equal(spread("norm/*.attn.q, val/loss", names), "norm/0.attn.q, norm/1.attn.q, val/loss");
  assert.equal(spread("val/loss * 2", names), "val/loss * 2");
  assert.deepEqual(completions("train/loss, va", names), ["train/loss, val/loss"]);
  assert.deepEqual(completions("loss", names), ["train/loss", "val/loss"]);
  assert.deepEqual(completions("", names), []);
});

test("a chart of several metrics has a key: colours for one run, dashes for several", () => {
  const of = (/** @type {any[]} */ lines) => keyOf(lines).map(({ label, colour, dash }) => `${label} ${colour} ${dash}`);
  const two = ["a", "b"].map((metric, i) => ({ ...line, metric, colour: `c${i}` }));
  assert.deepEqual(of(two), ["a c0 solid", "b c1 solid"]);
  const dashed = ["r", "q"].flatMap((id) => ["a", "b"].map((metric, i) => ({ ...line, run: id, metric, dash: ["solid", "dot"][i] })));
  assert.deepEqual(of(dashed), ["a currentColor solid", "b currentColor dot"]);
  assert.deepEqual(of([line]), []);
});

test("a metric of each layer is a line in the colour of its depth, or a row of a heat map", () => {
  const names = [0, 1, 2, 3, 10].map((layer) => `norm/${layer}.attn.q`);
  const stroke = { colour: "red", dash: /** @type {const} */ ("dash") };
  const lines = linesOf(names.join(), [{ id: "a", label: "a", stroke }], (_, part) => curve([[1, 0], [2, names.indexOf(part)]]));
  assert.deepEqual(lines.map(({ colour }) => colour), [0, 0.25, 0.5, 0.75, 1].map(along));
  assert.deepEqual(ownParts(names), ["0", "1", "2", "3", "10"]);
  assert.deepEqual(ownParts(["a", "aa"]), ["", "a"]);
  assert.deepEqual(heatAxis(lines).ticks.at(-1), { value: 4, text: "10" });
  assert.deepEqual(heatTraces(lines, 2).map(({ x, y, row }) => [x, y, row])[2], [[0.5, 1], [0, 0.5], 2]);
});

test("the ends of the values at the cursor are one where they read alike", () => {
  assert.equal(endsOf([1.19101, 1.19102], (value) => value.toFixed(3)), "1.191");
  assert.equal(endsOf([1, 2, 3], String), "1 to 3");
});

test("a cross or a dot at the end of the axis is whole, and one beyond it stays outside", () => {
  const right = (/** @type {number} */ x) => Math.max(...(symbol(x, 5, { symbol: "cross", size: 8 }, 100).match(/[\d.]+ /g) ?? []).map(Number));
  assert.deepEqual([50, 98, 100, 120].map(right), [54, 99, 99, 124]);
  assert.deepEqual([-1, 0, 50, 100].map((x) => symbol(x, 5, { size: 6 }, 100)), ["M-1.0 5.0h0", "M3.0 5.0h0", "M50.0 5.0h0", "M97.0 5.0h0"]);
});

test("the usual groups come first, the others by name, and a digest is not drawn", () => {
  const names = ["zeta/a", "data/digest", "memory/peak", "data/wait_s", "mfu", "train/lr", "val/loss", "train/loss"];
  assert.deepEqual(grouped(names), [
    ["train", ["train/lr", "train/loss"]],
    ["val", ["val/loss"]],
    ["speed", ["mfu"]],
    ["memory", ["memory/peak"]],
    ["data", ["data/wait_s"]],
    ["zeta", ["zeta/a"]],
  ]);
});

const trained = { tokens_per_step: 2048, flops_per_token: 1e6 };
const program = { tokens_per_step: 1, flops_per_token: null };
const counting = { tokens_per_step: 512, flops_per_token: null };

test("a program without tokens has neither tokens nor FLOPs, and the reason names the field", () => {
  assert.match(whyNot("tokens", [program]) ?? "", /trainer\.tokens_per_step/);
  assert.match(whyNot("flops", [program]) ?? "", /not known/);
  assert.equal(whyNot("step", [program]), null);
  assert.equal(whyNot("time", [program]), null);
});

test("a program that declares its tokens has that axis", () => {
  assert.equal(whyNot("tokens", [counting]), null);
  assert.match(whyNot("flops", [counting]) ?? "", /FLOPs/);
});

test("one run that has the axis is enough, and a page that has no run yet refuses nothing", () => {
  assert.equal(whyNot("tokens", [program, trained]), null);
  assert.equal(whyNot("flops", [program, trained]), null);
  assert.equal(whyNot("flops", []), null);
});

test("charts are drawn nearest first, and the next frame goes on where time was over", () => {
  /** @type {(() => void)[]} */
  const frames = [];
  Object.assign(globalThis, { ResizeObserver: class {}, requestAnimationFrame: (/** @type {() => void} */ next) => frames.push(next), scrollY: 1000, innerHeight: 800 });
  /** @type {number[]} */
  const tops = [];
  const late = new Frames(({ top }) => {
    tops.push(top);
    for (const end = performance.now() + 9; performance.now() < end;);
  }, () => undefined);
  const charts = /** @type {any[]} */ ([0, 2000, 1300, 1500].map((top) => ({ top })));
  late.add(charts);
  late.add(charts.slice(0, 1));
  for (const next of [2, 3]) {
    assert.equal(frames.length, next - 1, "one frame is asked for, however much waits");
    frames.at(-1)?.();
  }
  assert.deepEqual(tops, [1300, 1500]);
  const quick = new Frames(({ top }) => tops.push(top), () => undefined);
  quick.add(charts);
  frames.at(-1)?.();
  assert.deepEqual(tops.slice(2), [1300, 1500, 2000, 0]);
  assert.equal(frames.length, 4, "nothing waits");
});
