/** The runs page: the filter, columns of what differs, order, groups. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { nearest } from "../../api/lehr_api/dashboard/static/js/nearest.js";
import { drawnOf } from "../../api/lehr_api/dashboard/static/js/runs/beside.js";
import { bestOf, COLUMNS, parted, withValues, farOf, gpuHours } from "../../api/lehr_api/dashboard/static/js/runs/columns.js";
import { narrowed, partsOf } from "../../api/lehr_api/dashboard/static/js/runs/options.js";
import { columnNamed, columnOf, Configs, shortName, varyingPaths, labelsOf } from "../../api/lehr_api/dashboard/static/js/runs/configs.js";
import { completions, numberOf, parseFilter, unknownKey } from "../../api/lehr_api/dashboard/static/js/runs/filter.js";
import { Groups, grouped, linesOf, unfolded, withRows } from "../../api/lehr_api/dashboard/static/js/runs/groups.js";
import { markOf, ordersOf, pressed, textOf } from "../../api/lehr_api/dashboard/static/js/runs/list.js";
import { between } from "../../api/lehr_api/dashboard/static/js/runs/selection.js";
import { factorsOf } from "../../api/lehr_api/dashboard/static/js/compare/tables.js";
import { fc, run } from "./support.js";

/** @param {string} text @param {any} one @param {any} [configs] */
const passes = (text, one, configs = null) => parseFilter(text).test?.(one, configs);

test("an empty line lets every run through", () => {
  for (const text of ["", "   ", "\t"]) assert.deepEqual(parseFilter(text), { query: {}, test: null, problem: null, keys: [] });
});

test("words are searched for, in one piece", () => {
  assert.deepEqual(parseFilter("llama  wsd ").query, { search: "llama wsd" });
  assert.deepEqual(parseFilter(":odd x").query, { search: ":odd x" });
});

test("keys are asked of the server", () => {
  const { query, test: rows, problem } = parseFilter("state:running,done project:omk tag:fp8 sweep:lr-grid archived:yes big");
  assert.deepEqual(query, { state: ["running", "completed"], project: "omk", tag: "fp8", sweep: "lr-grid", archived: true, search: "big" });
  assert.equal(rows, null);
  assert.equal(problem, null);
  assert.deepEqual(parseFilter("archived:no").query, { archived: false });
  assert.deepEqual(parseFilter("tag:a:b").query, { tag: "a:b" });
  assert.deepEqual(parseFilter("State:Running state:failed").query, { state: ["running", "failed"] });
});

test("a number may have a unit, small or large", () => {
  assert.deepEqual(["5k", "5K", "2m", "2M", "1g", "1G", "2t", "2T", "-1.5K", "1e-3", "-3"].map(numberOf), [5e3, 5e3, 2e6, 2e6, 1e9, 1e9, 2e12, 2e12, -1500, 1e-3, -3]);
  for (const text of ["fast", "", "1e", "nan"]) assert.equal(numberOf(text), null);
  assert.equal(passes("step>5K", run({ step: 6000 })), true);
  assert.equal(passes("step>5K", run({ step: 4000 })), false);
});

test("archived runs are asked for or left out, whichever way it is said", () => {
  for (const text of ["-archived:yes", "!archived:true", "archived!=yes", "archived:no"]) assert.deepEqual(parseFilter(text), { query: { archived: false }, test: null, problem: null, keys: [] });
  for (const text of ["-archived:no", "archived!=no", "archived=yes"]) assert.deepEqual(parseFilter(text).query, { archived: true });
});

test("a key without a value is not asked for: it is still being typed", () => {
  assert.deepEqual(parseFilter("project: state: lr< "), { query: {}, test: null, problem: null, keys: [] });
});

test("what is no key and what is no state is named, with what is valid", () => {
  assert.match(parseFilter("state:runing").problem ?? "", /^runing is not a state\. Did you mean running\? States: queued/);
  assert.match(parseFilter("lr<fast").problem ?? "", /^lr<fast: fast is not a number/);
  assert.match(parseFilter("/(/").problem ?? "", /is not a regular expression/);
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

/** Two runs whose configs are known. */
function known() {
  const configs = new Configs();
  configs.take({ runs: ["a", "b"], same: { "train.optimizer.name": "adamw", "train.steps": 60 }, differing: { "train.optimizer.lr": [3e-3, 1e-2], "train.data.corpus.name": ["Books", null] }, metrics: { "train/grad_norm/layer0": [0.5, 2] } });
  return { configs, a: run({ id: "a", name: "grid-1", tags: ["old"], project: "omk", sweep_id: null, latest: { "train/loss": { value: 1.5, step: 9 } } }), b: run({ id: "b", name: "grid-2", tags: ["fp8"], project: "p2", sweep_id: null }) };
}

test("every path of a config and every metric is a key, whole or by its last words", () => {
  const { configs, a, b } = known();
  for (const text of ["lr=3e-3", "lr<5e-3", "train.optimizer.lr=0.003", "LR = 3e-3", "lr <5e-3", "corpus.name=books", "corpus.name:bo*", "train/loss<2", "loss < 2", "train/grad_norm/layer0<1", "lr=1,3e-3", "lr!=1e-2"]) {
    assert.equal(passes(text, a, configs), true, text);
    assert.equal(passes(text, b, configs), false, text);
  }
  for (const text of ["steps=60", "optimizer.name=adamw", "optimizer.name:ADAM*"]) for (const one of [a, b]) assert.equal(passes(text, one, configs), true, text);
});

test("a key is looked up in each run's own config, whatever other runs have", () => {
  const { configs, a, b } = known();
  configs.take({ runs: ["c"], same: { "trainer.args.lr": 3e-3, "trainer.args.every": 9 }, differing: {}, metrics: {} });
  const all = [a, b, run({ id: "c" }), run({ id: "d" })];
  const through = (/** @type {string} */ text) => all.filter((one) => passes(text, one, configs)).map(({ id }) => id).join("");
  assert.deepEqual(["lr=3e-3", "lr>=3e-3", "lr<1", "lr!=3e-3", "trainer.args.lr<1"].map(through), ["ac", "abc", "abc", "b", "c"]);

  configs.take({ runs: ["d"], same: { "train.checkpoint.every": 50, "train.validation.every": 20 }, differing: {}, metrics: {} });
  assert.deepEqual(["every=50", "every=20", "every<10", "every!=20", "every!=3"].map(through), ["d", "d", "c", "c", "cd"]);
});

test("the column of a setting has the argument of a script that stands for it, where it has no such setting", () => {
  const { configs } = known();
  configs.take({ runs: ["c"], same: { "trainer.args.lr": 0.5, "trainer.args.name": "x" }, differing: {}, metrics: {} });
  configs.take({ runs: ["d"], same: { "trainer.args.depth": 2 }, differing: {}, metrics: {} });
  const ids = ["a", "c", "d", "not here"];
  assert.deepEqual(ids.map((id) => configs.value(id, "train.optimizer.lr")), [3e-3, 0.5, null, undefined]);
  // Two settings of Lehr end in name: neither is meant.
  assert.equal(configs.value("c", "train.optimizer.name"), null);
  assert.deepEqual(configs.differing(ids).filter((path) => path.endsWith(".lr")), ["train.optimizer.lr"]);
});

test("the configured value is meant before the newest one of a metric of the same name", () => {
  const { configs, a } = known();
  const decayed = { ...a, latest: { "train/lr": { value: 1e-5, step: 9 }, "train/grad_norm": { value: 1, step: 9 } } };
  assert.equal(passes("lr=3e-3", decayed, configs), true);
  assert.equal(passes("train/lr=1e-5", decayed, configs), true);
  assert.equal(passes("grad_norm=1", decayed, configs), true);
});

test("a part is turned round by a minus, and words between slashes are a pattern", () => {
  const { a, b } = known();
  for (const text of ["-tag:fp8", "!tag:fp8", "-project:p2", "-grid-2", "/grid-1$/", "-/2/", "name:GRID-1", "tag:old,new", "project:omk,other", "tag:new tag:old"]) {
    assert.equal(passes(text, a), true, text);
    assert.equal(passes(text, b), false, text);
  }
  for (const text of ["state!=failed", "-state:failed"]) assert.deepEqual(["running", "failed"].map((state) => passes(text, run({ state }))), [true, false], text);
  assert.deepEqual(parseFilter("-state!=failed").query, { state: ["failed"] });
  assert.equal(parseFilter('"two words" tag:"a b"').query.search, "two words");
});

test("a key that nothing has is named, with the nearest that there is", () => {
  const { configs, a, b } = known();
  const problem = (/** @type {string} */ text) => unknownKey(parseFilter(text), [a, b], configs);
  assert.match(problem("lrr<1") ?? "", /^lrr is no key .* Did you mean lr\?/);
  assert.match(problem("owner:me") ?? "", /^owner is no key/);
  assert.match(problem("stat:running") ?? "", /Did you mean state\?/);
  for (const text of ["lr<1", "step>3", "val<2", "train/loss<2"]) assert.equal(problem(text), null, text);
  assert.equal(nearest("xyzzy", ["lr", "steps"]), "");
});

test("what differs between runs is their label, by names that tell the paths apart", () => {
  const { configs, a, b } = known();
  assert.deepEqual(configs.differing(["a", "b"]), ["train.optimizer.lr", "train.data.corpus.name"]);
  const labels = [a, b].map(labelsOf([a, b], ["train.optimizer.lr", "train.data.corpus.name"], configs));
  assert.deepEqual(labels, ["grid-1 · lr 3.0e-3 · corpus.name Books", "grid-2 · lr 0.01"]);
  assert.equal(shortName("train.model.name", ["train.model.name", "train.data.name"]), "model.name");
  assert.equal(shortName("train.optimizer.name", ["train.optimizer.name"]), "optimizer.name");
  const columns = ["train.optimizer.lr", "train.data.corpus.name"].map((path) => columnOf(path, [], configs));
  assert.deepEqual(columns.map(({ title, num }) => [title, num]), [["lr", true], ["corpus.name", false]]);
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
      if (problem === null && rows !== null) assert.equal(typeof rows(run(), null), "boolean");
    }),
  );
});

test("a note is found by a part of it, by the server or here", () => {
  const noted = run({ note: "Diverged, then cooled down." });
  const plain = run({});
  for (const text of ["note:~cooled", "note:cooled", "note=cooled", 'note:"cooled"']) assert.deepEqual(parseFilter(text).query, { note: "cooled" }, text);
  assert.deepEqual(parseFilter("note:~").query, {});
  for (const text of ["note:~DIVERGED,other", "note:other note:cooled", "-note:other"]) assert.equal(passes(text, noted), true, text);
  for (const text of ["-note:~cooled", "!note:cooled", "note!=cooled"]) {
    assert.equal(passes(text, noted), false, text);
    assert.equal(passes(text, plain), true, text);
  }
  assert.match(unknownKey(parseFilter("noet=cooled"), [noted], new Configs()) ?? "", /^noet is no key .*Did you mean note\?/);
});

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

test("lines have the names of their runs and what differs between them, trials of one sweep that alone", () => {
  const configs = new Configs();
  configs.take({ runs: ["a", "b", "c"], same: {}, differing: { [LR]: [1e-3, 2e-3, 1e-3], "train.steps": [9, 9, 8] }, metrics: {} });
  const labels = (/** @type {(string | null)[]} */ sweeps, ids = ["a", "b", "c"]) => {
    const runs = ids.map((id, i) => run({ id, name: `run-${id}`, sweep_id: sweeps[i] }));
    return runs.map(labelsOf(runs, [LR, "train.steps"], configs));
  };
  assert.deepEqual(labels([null, null, null]), ["run-a · lr 1.0e-3 · steps 9", "run-b · lr 2.0e-3 · steps 9", "run-c · lr 1.0e-3 · steps 8"]);
  assert.deepEqual(labels(["s", "t"], ["a", "b"]), ["run-a · lr 1.0e-3", "run-b · lr 2.0e-3"], "equal steps are left out");
  assert.deepEqual(labels(["s", "s"], ["a", "b"]), ["lr 1.0e-3", "lr 2.0e-3"]);
  assert.deepEqual(labels(["s"], ["a"]), ["run-a"]);
});

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

test("with Shift a press selects all rows from the last one, in either direction, or its own alone", () => {
  const listed = ["a", "b", "c", "d"].map((id) => run({ id }));
  const pressedBefore = (/** @type {string | null} */ last) => between(listed, last, listed[2]).map(({ id }) => id).join("");
  assert.deepEqual(["a", "d", "c", "gone", null].map(pressedBefore), ["abc", "cd", "c", "c", "c"]);
});

test("a column in which no run has a value is left out", () => {
  const keys = (/** @type {any[]} */ runs) => withValues(COLUMNS.filter(({ key }) => ["name", "trend", "mfu", "eta", "tags"].includes(key)), runs).map(({ key }) => key).join();
  assert.equal(keys([run({ eta_s: null })]), "name,trend");
  assert.equal(keys([run({ tags: ["x"] }), run({ latest: { mfu: { value: 0.4, step: 1 } }, eta_s: 9 })]), "name,trend,mfu,eta,tags");
  assert.equal(keys([]), "name,trend,mfu,eta,tags");
});

test("runs of a comparison are described by the factors that tell them apart, and their seed, not by the first that differ", () => {
  const factor = (/** @type {string} */ path, /** @type {any[]} */ values, counts = true) => ({ path, values, factor: counts });
  const comparison = /** @type {any} */ ({
    runs: ["a", "b", "c", "d"],
    differences: [
      factor("digest", [null, null, null, "x"]), factor("train.steps", [9, 9, 9, 8]), factor("name", ["1", "2", "3", "4"], false),
      factor(SEED, [0, 0, 1, 0], false), factor(LR, [1e-3, 2e-3, 1e-3, 3e-3]), factor(WIDTH, [8, 8, 8, 9]),
    ],
  });
  assert.deepEqual(comparison.runs.map((/** @type {string} */ id) => factorsOf(comparison, id)), ["lr 1.0e-3 · seed 0", "lr 2.0e-3 · seed 0", "lr 1.0e-3 · seed 1", "lr 3.0e-3 · seed 0"]);
  assert.equal(factorsOf(null, "a"), "");
});

test("runs that are all alike have no such column", () => {
  assert.deepEqual(pathsOf({ [LR]: [1, 1] }, [[LR], [LR]]), []);
});

const SWEEPS = (/** @type {any} */ one) => (one.sweep_id ? { id: one.sweep_id, name: `sweep ${one.sweep_id}`, href: null } : null);

test("a folded group is one row and one line, the mean of its runs; of an open one each run has both", () => {
  const runs = [run({ id: "a", sweep_id: "s" }), run({ id: "c" }), run({ id: "b", sweep_id: "s" }), run({ id: "d", sweep_id: "t" })];
  const items = grouped(runs, SWEEPS, (id) => id === "t");
  // No config is fetched of runs without a row.
  assert.deepEqual(withRows(items).map(({ id }) => id), ["c", "d"]);
  assert.deepEqual(linesOf(items).map((line) => [line.key, line.name, line.runs.map(({ id }) => id).join("")]), [["s", "sweep s", "ab"], ["c", null, "c"], ["d", null, "d"]]);
});

test("sorted groups come by their means among the runs, unknown ones last; those with a page by their first run", () => {
  const loss = (/** @type {number} */ value) => ({ latest: { "val/loss": { value, step: 1 } } });
  const column = COLUMNS.find(({ key }) => key === "val");
  const runs = [run({ id: "a", sweep_id: "s", ...loss(1) }), run({ id: "b", ...loss(2) }), run({ id: "c", sweep_id: "s", ...loss(5) }), run({ id: "d" })];
  const of = (/** @type {any} */ how) => grouped(runs, SWEEPS, () => false, { sorted: true, ...how }).map((one) => (one.kind === "run" ? one.run.id : one.id)).join("");
  const groups = new Groups("gpus", () => undefined);
  const ranks = groups.ranks(column ?? null, new Configs());
  assert.deepEqual([false, true].map((down) => of({ ranks, down })), ["bsd", "sbd"]);
  farOf.set("val/loss", ["c"]);
  assert.equal(of({ ranks }), "sbd", "without a run that is far");
  farOf.clear();
  runs[0].gpus = 8;
  assert.equal(of({ ranks: groups.ranks(null, new Configs()) }), "bds", "not sorted: by the key");
  assert.equal(of({}), "sbd");
  assert.equal(of({ first: [{ id: "none", name: "none", href: "/sweeps/none" }] }), "nonesbd");
});

test("rows are drawn whole, up to 20 lines of 400 runs", () => {
  const row = (/** @type {string} */ key, /** @type {any[]} */ runs) => ({ key, name: null, runs });
  const many = (/** @type {number} */ n) => Array.from({ length: n }, (_, i) => run({ id: `r${i}` }));
  assert.deepEqual(drawnOf([row("a", [run({ step: null })]), row("b", many(1))]).drawn.map(({ key }) => key), ["b"]);
  assert.deepEqual(drawnOf(many(20).map((one) => row(one.id, [one]))).note, "");
  assert.deepEqual(drawnOf(many(21).map((one) => row(one.id, [one]))).note, "The charts show the first 20 rows.");
  const { drawn, note } = drawnOf([row("a", many(350)), row("b", many(60))]);
  assert.deepEqual([drawn.map(({ runs }) => runs.length), note], [[350], "The charts show the first row."]);
  assert.equal(drawnOf([row("a", many(500))]).drawn[0].runs.length, 400);
});

test("columns whose values are all the same are parted from those that differ, and each has its best", () => {
  const of = (/** @type {number} */ loss, /** @type {number} */ mfu, /** @type {number} */ gpus) => run({ gpus, latest: { "train/loss": { value: loss, step: 1 }, mfu: { value: mfu, step: 1 } } });
  const columns = COLUMNS.filter(({ key }) => ["loss", "mfu", "gpus", "val"].includes(key));
  const runs = [of(2, 0.4, 8), of(NaN, 0.5, 8), of(3, 0.4, 8)];
  const { differ, alike } = parted(columns, runs, () => false);
  assert.deepEqual([differ, alike].map((all) => all.map(({ key }) => key).join()), ["val,loss,mfu", "gpus"]);
  assert.deepEqual(parted(columns, runs, ({ key }) => key === "gpus").alike, []);
  const done = [200, 400].map((step) => ({ step, total_steps: step, latest: {} }));
  const steps = COLUMNS.filter(({ key }) => key === "step");
  assert.deepEqual(parted(steps, /** @type {any} */ (done), () => false).alike, [], "all are done, at other steps");
  assert.deepEqual([...bestOf(columns, runs)], [["loss", 2], ["mfu", 0.5]]);
});

test("the filter completes keys, and values that runs have", () => {
  const runs = [run({ tags: ["omk", "old one"], project: "p1" }), run({ id: "b", tags: ["omk"], project: "p2" })];
  const configs = new Configs();
  configs.take({ runs: [runs[0].id, "b"], same: { "train.steps": 9 }, differing: { "train.optimizer.lr": [1e-3, 2e-3] }, metrics: {} });
  const complete = (/** @type {string} */ text) => completions(text, runs, configs);
  assert.deepEqual(complete("-pro"), ["-project:"]);
  assert.deepEqual(complete("lr"), ["lr=", "train.optimizer.lr="]);
  assert.deepEqual(complete("lr="), ["lr=0.001", "lr=0.002"]);
  assert.deepEqual(complete("tag:o"), ["tag:omk", 'tag:"old one"']);
  assert.deepEqual(complete("state:running,fa"), ["state:running,failed"]);
});

test("the newest sweep that has trained is unfolded, not one of seeds; with a filter each with a match, unless it is large", () => {
  const trial = (/** @type {string} */ sweep, /** @type {string} */ path, changes = {}) => run({ sweep_id: sweep, parameters_varied: { [path]: 1 }, ...changes });
  const runs = [trial("waits", LR, { step: null }), trial("seeds", SEED), trial("grid", LR), trial("old", LR)];
  assert.deepEqual([...unfolded(runs, false)], ["grid"]);
  const large = Array.from({ length: 17 }, () => trial("large", LR));
  assert.deepEqual([...unfolded([...large, ...runs], true)], ["waits", "seeds", "grid", "old"]);
});

test("the address has the columns in order, with a minus for falling", () => {
  for (const text of ["loss", "-loss", "state,-train.optimizer.lr", "-some-metric,gpus"]) assert.equal(textOf(ordersOf(text)), text);
  assert.deepEqual(ordersOf("-some-metric,gpus"), [{ key: "some-metric", down: true }, { key: "gpus", down: false }]);
  assert.deepEqual([ordersOf(null), ordersOf(""), textOf([])], [[], [], null]);
});

test("a click sorts by one column: rising, falling, newest first again", () => {
  const once = pressed([], "loss", false);
  assert.equal(textOf(once), "loss");
  assert.equal(textOf(pressed(once, "loss", false)), "-loss");
  assert.equal(textOf(pressed(ordersOf("-loss"), "loss", false)), null);
  assert.equal(textOf(pressed(ordersOf("state,-loss"), "loss", false)), "loss");
});

test("with shift, a column is added after the others, turned, and taken out again", () => {
  const both = pressed(ordersOf("state"), "loss", true);
  assert.equal(textOf(both), "state,loss");
  assert.equal(textOf(pressed(both, "loss", true)), "state,-loss");
  assert.equal(textOf(pressed(both, "state", true)), "-state,loss");
  assert.equal(textOf(pressed(ordersOf("-state,loss"), "state", true)), "loss");
});

test("a head shows its direction, and its place among several", () => {
  assert.equal(markOf(ordersOf("-loss"), "loss"), " ↓");
  assert.equal(markOf(ordersOf("state,-loss"), "loss"), " ↓2");
  assert.equal(markOf(ordersOf("state,-loss"), "state"), " ↑1");
  assert.equal(markOf(ordersOf("state"), "loss"), "");
});

test("the GPU-hours used grow while GPUs are held, and not in a pause", () => {
  const [until, gpu] = [Date.now() / 1000 - 1800, { node: "n1", gpu: 0 }];
  const live = run({ ended_at: null, placement: [gpu, { ...gpu, gpu: 1 }] });
  assert.equal(gpuHours(null, [live]), null);
  assert.equal(gpuHours({ gpu_hours: 3, until: null }, [live]), 3);
  assert.ok(Math.abs(Number(gpuHours({ gpu_hours: 3, until }, [live, run({ ended_at: 1, placement: [gpu] })])) - 4) < 0.01);
});

test("a cell's value narrows the filter to it, or leaves it out, in place of what says the opposite", () => {
  const configs = new Configs();
  const one = run({ tags: ["omk", "old"], state: "failed" });
  configs.take({ runs: [one.id], same: { [LR]: 1e-3, "train.optimizer.name": "adam w", "train.data.mix": [1], "trainer.args.loss": 5 }, differing: {}, metrics: {} });
  const of = (/** @type {string} */ key) => partsOf(one, columnNamed(key, configs), configs);
  assert.deepEqual(["state", "tags", LR, "train.optimizer.name", "trainer.args.loss", "train.data.mix", "val"].map(of), [["state:failed"], ["tag:omk", "tag:old"], ["lr=0.001"], ['optimizer.name="adam w"'], ["trainer.args.loss=5"], [], []]);
  assert.deepEqual(narrowed(["lr<1", "lr=0.1", "-lr=0.001", "words"], "lr=0.001"), ["lr<1", "words", "lr=0.001"]);
  assert.deepEqual(narrowed(["state:failed", "-state:queued"], "-state:failed"), ["-state:queued", "-state:failed"]);
});
