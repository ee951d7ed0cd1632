/** Notes: web addresses become links, everything else stays text. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { linked } from "../../api/lehr_api/dashboard/static/js/note.js";

test("an address ends before the full stop of its sentence", () => {
  assert.deepEqual(linked("see https://example.org/a?b=1. Then (http://x.org) <b>"), [
    { text: "see ", href: null },
    { text: "https://example.org/a?b=1", href: "https://example.org/a?b=1" },
    { text: ". Then (", href: null },
    { text: "http://x.org", href: "http://x.org" },
    { text: ") <b>", href: null },
  ]);
});

test("other schemes are no links", () => {
  assert.deepEqual(linked("javascript:alert(1)"), [{ text: "javascript:alert(1)", href: null }]);
});
