/** The title of a tab tells the state. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { tabTitle } from "../../api/lehr_api/dashboard/static/js/status.js";

test("a state has its sign, and a running one its share", () => {
  assert.equal(tabTitle("x", "running", 0.257), "▶ 25 % x · Lehr");
  assert.equal(tabTitle("x", "running"), "▶ x · Lehr");
  assert.equal(tabTitle("x", "failed", 0.5), "✕ x · Lehr");
  assert.equal(tabTitle("x", "unheard of"), "x · Lehr");
});
