/** Requests for the same thing of several runs are sent as one, and each run gets its own answer. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { ask } from "../../api/lehr_api/dashboard/static/js/charts/feed.js";
import { fetchRuns } from "../../api/lehr_api/dashboard/static/js/runs/list.js";

/**
 * Answer requests, and note their addresses.
 *
 * @param {(address: URL) => [number, any]} answer
 */
function serving(answer) {
  /** @type {string[]} */
  const asked = [];
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ text) => {
    asked.push(text.replace("/api/v1", ""));
    const [status, body] = answer(new URL(text, "http://lehr"));
    return new Response(JSON.stringify(body), { status });
  });
  return asked;
}

/** @param {URL} address */
const runsOf = (address) => address.searchParams.getAll("run");

test("what is asked of several runs in one moment is one request", async () => {
  const asked = serving((address) => [200, runsOf(address).map((run) => ({ run_id: run, name: "loss", of: address.pathname }))]);
  const found = await Promise.all(["a", "b"].map((run) => ask("/series", run, { name: ["loss"] })));
  assert.deepEqual(asked, ["/series?name=loss&run=a&run=b"]);
  assert.deepEqual(found.map((one) => one.map((part) => part.run_id)), [["a"], ["b"]]);
});

test("a single run is asked by its own address, and each run has its own first x", async () => {
  const asked = serving((address) => [200, runsOf(address).map((run) => ({ run_id: run }))]);
  await ask("/series", "a", { name: "loss" }, 7);
  await Promise.all([ask("/series", "a", { name: "loss" }, 3), ask("/series", "b", { name: "loss" }, 5), ask("/series", "c", { name: "loss" })]);
  assert.deepEqual(asked, ["/runs/a/series?name=loss&from=7", "/series?name=loss&run=a&run=b&from=3&from=5", "/runs/c/series?name=loss"]);
});

test("different questions are different requests, and so many runs are divided", async () => {
  const asked = serving((address) => [200, runsOf(address).map((run) => ({ run_id: run, metrics: [{ name: `of ${run}` }] }))]);
  const names = await Promise.all([...Array.from({ length: 30 }, (_, i) => ask("/metrics", `r${i}`, {})), ask("/series", "r1", {}), ask("/series", "r2", {})]);
  assert.deepEqual(asked.map((address) => [address.split("?")[0], address.split("run=").length - 1]), [["/metrics", 25], ["/metrics", 5], ["/series", 2]]);
  assert.deepEqual(names[29], [{ name: "of r29" }]);
});

test("one run that is gone does not take the others along", async () => {
  serving((address) => {
    const gone = [...runsOf(address), ...address.pathname.split("/")].includes("gone");
    return gone ? [404, { code: "not_found", detail: "no run gone" }] : [200, [{ run_id: "a" }]];
  });
  const [one, other] = await Promise.allSettled([ask("/series", "a", {}), ask("/series", "gone", {})]);
  assert.deepEqual(one, { status: "fulfilled", value: [{ run_id: "a" }] });
  assert.equal(other.status, "rejected");
});

test("a comparison opens with one request for its runs, and asks alone only for names", async () => {
  const asked = serving((address) => {
    if (address.pathname.endsWith("/runs")) return [200, { items: [{ id: "b" }, { id: "a" }] }];
    return address.pathname.endsWith("/named") ? [200, { id: "c" }] : [404, { detail: "no run nobody" }];
  });
  const { found, missing } = await fetchRuns(["a", "b", "named", "nobody"]);
  assert.deepEqual(found.map(({ id }) => id), ["a", "b", "c"]);
  assert.match(String(missing), /no run nobody/);
  assert.deepEqual(asked, ["/runs?run=a&run=b&run=named&run=nobody&limit=4", "/runs/named", "/runs/nobody"]);
});
