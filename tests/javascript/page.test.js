/** Parts of every page: age of figures, logout, pace of updates. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { get, logOut, serverTime } from "../../api/lehr_api/dashboard/static/js/api.js";
import { throttled } from "../../api/lehr_api/dashboard/static/js/dom.js";
import { FiguresAge } from "../../api/lehr_api/dashboard/static/js/status.js";
import { run } from "./support.js";

/** @param {number} every seconds between two records @param {number} late when their events come */
function after(every, late) {
  const age = new FiguresAge();
  for (const at of [0, 1, 2, 3]) for (const id of ["a", "b"]) age.take(run({ id, liveness: "ok", recorded_at: at * every }), at * every + late);
  return age;
}

test("figures that come late are told, whatever their pauses: a run may evaluate or save", () => {
  assert.deepEqual([after(1, 12).late, after(1, 2).late, after(60, 2).late], [12, null, null]);
});

test("the lateness is the median of the live runs", () => {
  const age = after(1, 12);
  age.take(run({ id: "c", liveness: "ok", recorded_at: 0 }), 15);
  assert.equal(age.late, 12);
  for (const id of ["a", "b"]) age.take(run({ id, state: "completed", liveness: "ok", recorded_at: 4 }), 16);
  assert.equal(age.late, null);
});

test("the time is the server's, whatever the clock of the browser says", async (t) => {
  const before = globalThis.fetch;
  t.after(() => Object.assign(globalThis, { fetch: before }));
  globalThis.fetch = async () => new Response("{}", { headers: { Date: "Thu, 01 Jan 2015 00:00:00 GMT" } });
  await get("/runs");
  assert.equal(Math.round(serverTime()), Date.UTC(2015, 0, 1) / 1000);
});

test("the page of a login link, which has no field for a token, makes no error", async (t) => {
  t.after(() => Reflect.deleteProperty(globalThis, "document"));
  Object.assign(globalThis, { document: { getElementById: () => null } });
  await import("../../api/lehr_api/dashboard/static/js/pages/login.js");
});

test("a refused request opens the login, but not while the page logs out", async (t) => {
  const before = { addEventListener: globalThis.addEventListener, location: globalThis.location, fetch: globalThis.fetch };
  t.after(() => Object.assign(globalThis, before));
  const page = new EventTarget();
  /** @type {string[]} */
  const opened = [];
  Object.assign(globalThis, {
    addEventListener: page.addEventListener.bind(page),
    location: { pathname: "/", search: "?flat=1", assign: (/** @type {string} */ address) => opened.push(address) },
    fetch: async () => new Response("{}", { status: 401 }),
  });
  const refused = () => assert.rejects(get("/runs"));

  await refused();
  assert.deepEqual(opened, ["/login?next=%2F%3Fflat%3D1"]);

  logOut();
  await refused();
  assert.equal(opened.length, 1);

  page.dispatchEvent(new Event("pageshow"));
  await refused();
  assert.equal(opened.length, 2);
});

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
