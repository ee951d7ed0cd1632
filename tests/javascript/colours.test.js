/** Colours of runs: assigned by id, along a scale, and distinct to everybody (CIEDE2000). */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { along, faded, slot, slots, stroke } from "../../api/lehr_api/dashboard/static/js/colour.js";
import { fc } from "./support.js";

test("a run's own colour depends on its id alone", () => {
  assert.deepEqual(["k3f9x2ab", "p8w2c4nd", "zürich", ""].map(slot), [5, 5, 4, 1]);
  fc.assert(fc.property(fc.string(), (id) => assert.ok(slot(id) >= 0 && slot(id) < 10)));
});

test("a run keeps its colour whoever is beside it, and its dash in whatever order they are", () => {
  fc.assert(
    fc.property(fc.uniqueArray(fc.string({ minLength: 1 }), { minLength: 1, maxLength: 30 }), fc.nat(), (ids, turn) => {
      const given = slots(ids);
      for (const id of ids) assert.equal((given.get(id) ?? NaN) % 10, slot(id));
      const cut = turn % ids.length;
      assert.deepEqual(slots([...ids.slice(cut), ...ids.slice(0, cut)]), given);
      if (ids.every((id) => ids.filter((other) => slot(other) === slot(id)).length <= 4)) assert.equal(new Set(given.values()).size, ids.length);
    }),
  );
  assert.equal(stroke(slots(["p8w2c4nd", "k3f9x2ab"]).get("p8w2c4nd") ?? 0).dash, "dash");
});

test("runs have the colours here that they have in figures of notebooks and in reports", () => {
  // tests/platform/analysis/test_figures.py holds Python's rule to the same numbers.
  const given = slots(Array.from({ length: 12 }, (_, i) => `run${i}`));
  assert.deepEqual(Array.from({ length: 12 }, (_, i) => given.get(`run${i}`)), [2, 1, 4, 3, 18, 17, 0, 9, 10, 19, 7, 8]);
});

test("a colour of the dark theme has about the hue of its twin", () => {
  const colours = (/** @type {string} */ theme) => {
    globalThis.document = /** @type {any} */ ({ documentElement: { dataset: { theme } } });
    return Array.from({ length: 10 }, (_, n) => stroke(n).colour);
  };
  const hue = (/** @type {string} */ colour) => {
    const [red, green, blue] = channels(colour);
    return (Math.atan2(Math.sqrt(3) * (green - blue), 2 * red - green - blue) * 180) / Math.PI;
  };
  const dark = colours("dark");
  colours("light").forEach((colour, i) => {
    const turn = Math.abs(((hue(colour) - hue(dark[i]) + 540) % 360) - 180);
    assert.ok(turn <= 40, `${colour} and ${dark[i]} are ${turn.toFixed(0)} degrees apart`);
  });
});

test("a colour becomes see-through in either notation", () => {
  assert.equal(faded("#3f90da", 0.35), "rgba(63, 144, 218, 0.35)");
  assert.equal(faded("rgb(1, 2, 3)", 0.5), "rgba(1, 2, 3, 0.5)");
});

/** The grounds of both themes, as the style sheet has them: light, dark. */
const GROUNDS = [...readFileSync(new URL("../../api/lehr_api/dashboard/static/css/tokens.css", import.meta.url), "utf8").matchAll(/--bg: (#[0-9a-f]{6})/g)].map(([, hex]) => hex);

/** @param {string} colour @returns {number[]} */
const channels = (colour) => (colour.startsWith("#") ? [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16)) : (colour.match(/\d+/g) ?? []).map(Number));

/** @param {string} colour */
function luminance(colour) {
  const [red, green, blue] = channels(colour).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

/** @param {string} a @param {string} b */
function contrast(a, b) {
  const [dark, light] = [luminance(a), luminance(b)].sort((one, other) => one - other);
  return (light + 0.05) / (dark + 0.05);
}

test("each colour of a curve has a contrast of 3:1 with the page, in both themes", () => {
  assert.equal(GROUNDS.length, 2);
  for (const [i, theme] of ["light", "dark"].entries()) {
    globalThis.document = /** @type {any} */ ({ documentElement: { dataset: { theme } } });
    const scale = Array.from({ length: 501 }, (_, n) => along(n / 500));
    for (const colour of [...scale, ...Array.from({ length: 10 }, (_, n) => stroke(n).colour)]) {
      assert.ok(contrast(colour, GROUNDS[i]) >= 3, `${theme}: ${colour} has ${contrast(colour, GROUNDS[i]).toFixed(2)}`);
    }
    // Lighter from end to end, so that the order is seen without the hue.
    assert.ok(scale.every((colour, n) => n === 0 || luminance(colour) >= luminance(scale[n - 1]) - 1e-3), theme);
  }
});

/** Dichromats' vision of linear RGB: Machado, Oliveira and Fernandes 2009, severity 1. */
const VISIONS = {
  normal: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};
const XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]];
const WHITE = [0.95047, 1, 1.08883];
const RADIANS = Math.PI / 180;

/** @param {number[][]} matrix @param {number[]} vector */
const times = (matrix, vector) => matrix.map((row) => row.reduce((sum, value, i) => sum + value * vector[i], 0));

/** @param {string} hex @param {number[][]} vision @returns {[number, number, number]} L*, a*, b* */
function lab(hex, vision) {
  const linear = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  const seen = times(vision, linear).map((v) => Math.min(1, Math.max(0, v)));
  const [x, y, z] = times(XYZ, seen).map((v, i) => v / WHITE[i]).map((v) => (v > 216 / 24389 ? Math.cbrt(v) : ((24389 / 27) * v + 16) / 116));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

/** @param {[number, number, number]} one @param {[number, number, number]} other */
function ciede2000([l1, a1, b1], [l2, a2, b2]) {
  const mean = (Math.hypot(a1, b1) + Math.hypot(a2, b2)) / 2;
  const stretch = 1 + (1 - Math.sqrt(mean ** 7 / (mean ** 7 + 25 ** 7))) / 2;
  const [c1, c2] = [Math.hypot(a1 * stretch, b1), Math.hypot(a2 * stretch, b2)];
  const hue = (/** @type {number} */ a, /** @type {number} */ b) => (Math.atan2(b, a * stretch) / RADIANS + 360) % 360;
  const [h1, h2] = [hue(a1, b1), hue(a2, b2)];
  const turn = c1 * c2 === 0 ? 0 : ((h2 - h1 + 540) % 360) - 180;
  const h = h1 + turn / 2;
  const [l, c] = [(l1 + l2) / 2, (c1 + c2) / 2];
  const cos = (/** @type {number} */ degrees) => Math.cos(degrees * RADIANS);
  const t = 1 - 0.17 * cos(h - 30) + 0.24 * cos(2 * h) + 0.32 * cos(3 * h + 6) - 0.2 * cos(4 * h - 63);
  const lightness = (l2 - l1) / (1 + (0.015 * (l - 50) ** 2) / Math.sqrt(20 + (l - 50) ** 2));
  const chroma = (c2 - c1) / (1 + 0.045 * c);
  const hues = (2 * Math.sqrt(c1 * c2) * Math.sin((turn / 2) * RADIANS)) / (1 + 0.015 * c * t);
  const around = (((h + 360) % 360) - 275) / 25;
  const rotation = -Math.sin(60 * Math.exp(-(around ** 2)) * RADIANS) * 2 * Math.sqrt(c ** 7 / (c ** 7 + 25 ** 7));
  return Math.sqrt(lightness ** 2 + chroma ** 2 + hues ** 2 + rotation * chroma * hues);
}

test("the distance is that of the published examples", () => {
  // Sharma, Wu and Dalal 2005, table 1.
  for (const [one, other, distance] of /** @type {[[number, number, number], [number, number, number], number][]} */ ([
    [[50, 2.6772, -79.7751], [50, 0, -82.7485], 2.0425],
    [[50, 2.5, 0], [61, -5, 29], 22.8977],
    [[60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644],
    [[22.7233, 20.0904, -46.694], [23.0331, 14.973, -42.5619], 2.0373],
  ])) assert.ok(Math.abs(ciede2000(one, other) - distance) < 1e-3, `${ciede2000(one, other)} ${distance}`);
});

/** The colours of failures in both themes, as the style sheet has them. */
const FAILED = [...readFileSync(new URL("../../api/lehr_api/dashboard/static/css/tokens.css", import.meta.url), "utf8").matchAll(/--bad: (#[0-9a-f]{6})/g)].map(([, hex]) => hex);

for (const [i, theme] of ["light", "dark"].entries()) {
  test(`no two of the ten colours are alike, and none is a grey or like a failure: ${theme}`, () => {
    globalThis.document = /** @type {any} */ ({ documentElement: { dataset: { theme } } });
    const colours = Array.from({ length: 10 }, (_, n) => stroke(n).colour);
    for (const [name, vision] of Object.entries(VISIONS)) {
      const normal = name === "normal";
      const seen = colours.map((colour) => lab(colour, vision));
      seen.forEach((one, n) => {
        const failure = ciede2000(one, lab(FAILED[i], vision));
        assert.ok(failure >= (normal ? 19 : 7.5), `${name}: ${colours[n]} is ${failure.toFixed(1)} from a failure`);
        // Greys are lines of attempts that a later one has replaced.
        if (normal) assert.ok(Math.hypot(one[1], one[2]) >= 20, `${colours[n]} is a grey`);
        for (let m = 0; m < n; m += 1) {
          const distance = ciede2000(one, seen[m]);
          assert.ok(distance >= (normal ? 17 : 9), `${name}: ${colours[m]} and ${colours[n]} are ${distance.toFixed(1)} apart`);
        }
      });
    }
  });
}
