/** An axis that no run of the page has is not offered, with the reason. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { whyNot } from "../../api/lehr_api/dashboard/static/js/charts/toolbar.js";

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
