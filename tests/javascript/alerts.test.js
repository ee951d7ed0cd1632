import assert from "node:assert/strict";
import { test } from "node:test";

import { explained } from "../../api/lehr_api/dashboard/static/js/run/header.js";
import { run } from "./support.js";

const explanation = [{ name: "seen", text: "the loss rose" }, { name: "source", text: "Zhang et al. 2022" }];
/** @type {any} */
const diverging = { code: "diverging", step: 1200, message: "the loss rose. Lower the rate", explanation };

test("an alert of the diagnosis has its name, its step and its explanation", () => {
  const found = explained(run({ alerts: [diverging.message], diagnosis: [diverging] }));
  assert.deepEqual(found, [{ title: "diverging, since step 1,200", lines: explanation }]);
});

test("a warning of the trainer, and an alert that is not explained yet, are their text", () => {
  const found = explained(run({ alerts: ["the loss jumped", "the loss rose again. Lower the rate"], diagnosis: [diverging] }));
  assert.deepEqual(found.map((one) => one.title), ["the loss jumped", "the loss rose again. Lower the rate"]);
  assert.deepEqual(found.flatMap((one) => one.lines), []);
});
