/** Calls that come often are carried out at most once in a while, unless somebody waits for the result. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { throttled } from "../../api/lehr_api/dashboard/static/js/dom.js";

const settled = async () => {
  for (let i = 0; i < 10; i += 1) await null;
};

/** @param {() => Promise<void>} [act] */
function counted(act = async () => undefined) {
  const calls = { count: 0 };
  mock.timers.enable({ apis: ["setTimeout"] });
  const call = throttled(() => {
    calls.count += 1;
    return act();
  }, 1000);
  return { calls, call };
}

test("calls within the pause are one call after it", async (t) => {
  t.after(() => mock.timers.reset());
  const { calls, call } = counted();
  call();
  call();
  call();
  await settled();
  assert.equal(calls.count, 1);
  mock.timers.tick(1000);
  await settled();
  assert.equal(calls.count, 2);
});

test("a call that cannot wait ends the pause", async (t) => {
  t.after(() => mock.timers.reset());
  const { calls, call } = counted();
  call();
  await settled();
  call(true);
  await settled();
  assert.equal(calls.count, 2);
});

test("a call that cannot wait does not overlap with the one before it", async (t) => {
  t.after(() => mock.timers.reset());
  let end = () => {};
  const { calls, call } = counted(() => new Promise((done) => {
    end = () => done(undefined);
  }));
  call();
  call(true);
  await settled();
  assert.equal(calls.count, 1);
  end();
  await settled();
  assert.equal(calls.count, 2);
});
