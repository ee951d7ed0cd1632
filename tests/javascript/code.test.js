/** What the page of a run shows of its code and its config. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { configOf } from "../../api/lehr_api/dashboard/static/js/run/config.js";
import { commands, contents } from "../../api/lehr_api/dashboard/static/js/code.js";

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
  const run = { spec: { trainer: { args: { lr: 0.1 } } }, logged_config: { depth: 4 } };
  assert.deepEqual([...configOf(run)], [["trainer.args.lr", 0.1], ["wandb.config.depth", 4]]);
});
