/** How late live figures come: shown where the events of the server come late. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { get, serverTime } from "../../api/lehr_api/dashboard/static/js/api.js";
import { FiguresAge } from "../../api/lehr_api/dashboard/static/js/figures_age.js";
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
