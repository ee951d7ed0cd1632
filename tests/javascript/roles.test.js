/** Roles: who may press what, and the reason where they may not. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { refusal } from "../../api/lehr_api/dashboard/static/js/form.js";

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
