/** The login, and what a request that the server refuses does to the page. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { get, logOut } from "../../api/lehr_api/dashboard/static/js/api.js";

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
