/** Numbers, times and units: edge cases by hand, and what holds of every number. */

import assert from "node:assert/strict";
import { test } from "node:test";

import * as f from "../../api/lehr_api/dashboard/static/js/format.js";
import { fc } from "./support.js";

const FORMATS = { number: f.number, scientific: f.scientific, integer: f.integer, si: f.si, bytes: f.bytes, percent: f.percent, duration: f.duration };

/** @param {string} text a number as it is shown */
const parsed = (text) => Number(text.replaceAll("−", "-").replaceAll(",", ""));

/** @param {number} low @param {number} high */
const sized = (low, high) => fc.double({ min: Math.log10(low), max: Math.log10(high), noNaN: true }).map((exponent) => 10 ** exponent);

/**
 * @param {number} shown
 * @param {number} value
 * @param {number} share
 */
function assertNear(shown, value, share) {
  assert.ok(Math.abs(shown - value) <= share * Math.abs(value), `${shown} is shown for ${value}`);
}

test("what is not known is a dash in every format", () => {
  for (const [name, format] of Object.entries(FORMATS)) {
    assert.equal(format(null), "—", name);
    assert.equal(format(undefined), "—", name);
  }
});

test("no format shows undefined, or NaN for what is a number", () => {
  fc.assert(
    fc.property(fc.double({ min: -1e300, max: 1e300, noNaN: true }), (value) => {
      for (const [name, format] of Object.entries(FORMATS)) assert.doesNotMatch(format(value), /undefined|NaN|Infinity/, name);
      for (const metric of ["tokens_per_s", "mfu", "memory/peak_bytes", "step_time_s", "train/lr", "val/loss"]) {
        assert.doesNotMatch(f.metric(metric, value), /undefined|NaN|Infinity/, metric);
      }
    }),
  );
});

test("what is not finite has a name", () => {
  for (const format of [f.number, f.scientific, f.integer, f.si, f.bytes, f.percent]) {
    assert.equal(format(NaN), "NaN");
    assert.equal(format("NaN"), "NaN");
    assert.equal(format("Infinity"), "∞");
    assert.equal(format(-Infinity), "−∞");
  }
  assert.equal(f.duration("NaN"), "—");
});

test("numbers come from the wire as they were", () => {
  assert.equal(f.fromWire(null), null);
  assert.equal(f.fromWire(0), 0);
  assert.equal(f.fromWire("-Infinity"), -Infinity);
  assert.ok(Number.isNaN(f.fromWire("NaN")));
});

test("losses have four significant digits", () => {
  const shown = { 0: "0", 2.10449: "2.104", 2.91412: "2.914", 12.2649: "12.26", 8214.4: "8,214", "-0.5": "−0.5000", 0.0123456: "0.01235", 12.3456: "12.35", 999.96: "1,000", 12345.6: "12,346", 9999999: "9,999,999", 1e7: "1.0e7", 0.00012345: "1.234e-4", "1e-300": "1.0e-300" };
  for (const [value, text] of Object.entries(shown)) assert.equal(f.number(Number(value)), text);
  assert.equal(f.number(-0), "0");
});

test("a shown number is the number to its digits, and its negative the same with a sign", () => {
  fc.assert(
    fc.property(sized(1e-12, 1e12), (value) => {
      assertNear(parsed(f.number(value)), value, 5.1e-4);
      assert.equal(f.number(-value), `−${f.number(value)}`);
    }),
  );
});

test("a larger number is never shown as a smaller one", () => {
  fc.assert(
    fc.property(sized(1e-6, 1e9), sized(1e-6, 1e9), (a, b) => {
      const [low, high] = a < b ? [a, b] : [b, a];
      assert.ok(parsed(f.number(low)) <= parsed(f.number(high)), `${f.number(low)} and ${f.number(high)}`);
    }),
  );
});

test("learning rates are scientific, with one digit after the point at least, unless they are ordinary numbers", () => {
  assert.equal(f.scientific(3e-4), "3.0e-4");
  assert.equal(f.scientific(3.16e-4), "3.16e-4");
  assert.deepEqual([0, 0.0099, 0.01, -3, 9999, 1e4].map((v) => f.scientific(v)), ["0", "9.9e-3", "0.01", "−3", "9999", "1.0e4"]);
  assert.equal(f.scientific(-1e5), "−1.0e5");
  assert.equal(f.scientific(0.000999999), "1.0e-3");
  fc.assert(fc.property(sized(1e-300, 1e300), (value) => assertNear(parsed(f.scientific(value)), value, 5.1e-3)));
});

test("whole numbers have separators", () => {
  assert.equal(f.integer(1234567), "1,234,567");
  assert.equal(f.integer(-1234), "−1,234");
  assert.equal(f.integer(0), "0");
});

test("prefixes leave three digits", () => {
  const shown = { 0: "0", 7: "7", 999: "999", 1000: "1.00k", 31200: "31.2k", 402000: "402k", 402123: "402k", 31249: "31.2k", 999.96: "1.00k", 1241581568: "1.24G", 999499: "999k", 999500: "1.00M", 999999: "1.00M", 1.24e9: "1.24G", 6.3e21: "6.30Z", 0.5: "0.500", "-1500": "−1.50k", "1e-9": "1.0e-9" };
  for (const [value, text] of Object.entries(shown)) assert.equal(f.si(Number(value)), text);
  assert.equal(f.si(31200, "tok/s"), "31.2k tok/s");
  /** @type {Record<string, number>} */
  const powers = { "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18, Z: 1e21 };
  fc.assert(
    fc.property(sized(1, 9e23), (value) => {
      const [, digits = "", prefix = ""] = /^([\d.]+)([kMGTPEZ]?)$/.exec(f.si(value)) ?? [];
      assert.ok(Number(digits) < 1000, f.si(value));
      assertNear(Number(digits) * powers[prefix], value, 5.1e-3);
    }),
  );
});

test("sizes are in units of a thousand, and never a thousand of one", () => {
  const shown = { 0: "0 B", 999: "999 B", 1000: "1 kB", 44700: "44.7 kB", 999999: "1 MB", 9.06e9: "9.06 GB", 61316530176: "61.3 GB", 5e12: "5 TB", 5e15: "5000 TB", "-2048": "−2.05 kB" };
  for (const [value, text] of Object.entries(shown)) assert.equal(f.bytes(Number(value)), text);
  /** @type {Record<string, number>} */
  const powers = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 9e14 }), (value) => {
      const [digits, unit] = f.bytes(value).split(" ");
      assertNear(Number(digits) * powers[unit], value, 5.1e-3);
      if (unit !== "TB") assert.ok(Number(digits) < 1000, f.bytes(value));
    }),
  );
});

test("shares are per cent", () => {
  const shown = { 0: "0 %", 0.49: "49 %", 0.0512: "5.1 %", 0.421: "42 %", 0.0012: "0.12 %", 0.09999: "10 %", 1: "100 %", 0.001: "0.10 %", "-0.05": "−5.0 %" };
  for (const [value, text] of Object.entries(shown)) assert.equal(f.percent(Number(value)), text);
});

test("durations are in the two largest units", () => {
  const shown = { 0: "0 s", 0.0325: "32.5 ms", 0.9999: "1 s", 8.4: "8 s", 59.6: "1 m", 90: "1 m 30 s", 125: "2 m 5 s", 0.25: "250 ms", 400000: "4 d 15 h", 600: "10 m", 3599.6: "1 h", 33120: "9 h 12 m", 86400: "1 d", 90000: "1 d 1 h", "-5": "—", "-0.4": "0 s" };
  for (const [value, text] of Object.entries(shown)) assert.equal(f.duration(Number(value)), text);
  assert.equal(f.duration(Infinity), "—");
});

test("no duration has sixty seconds, sixty minutes or a thousand milliseconds", () => {
  fc.assert(fc.property(sized(1e-3, 1e7), (value) => assert.doesNotMatch(f.duration(value), /\b(60 s|60 m|24 h|1000 ms)\b/)));
});

test("a metric is shown in its own unit", () => {
  const shown = [
    ["tokens_per_s", 31200, "31.2k tok/s"],
    ["mfu", 0.491, "49 %"],
    ["top1_acc", 0.7082, "70.82 %"],
    ["top1_acc", 0.7076, "70.76 %"],
    ["eval/hellaswag_acc", 0.7082, "0.7082"],
    ["eval/hellaswag_acc", 70.82, "70.82"], // A script may log percent.
    ["top1_acc", "NaN", "NaN"],
    ["memory/peak_bytes", 61.3e9, "61.3 GB"],
    ["system/disk_read_bytes_per_s", 33600, "33.6 kB/s"],
    ["step_time_s", 0.0324, "32.4 ms"],
    ["step_time_s", 2.1, "2.1 s"],
    ["data_wait_s", 0.0000021, "2.1 µs"],
    ["step_time_s", 0.9999, "1 s"],
    ["step_time_s", 0, "0 s"],
    ["train/lr", 3e-4, "3.0e-4"],
    ["val/loss", 2.10449, "2.104"],
    ["val/loss", "NaN", "NaN"],
  ];
  for (const [name, value, text] of shown) assert.equal(f.metric(String(name), value), text);
});

test("the change from a base has a sign, and a share where the base is not zero", () => {
  assert.equal(f.change(3.5, 3, "val/loss"), "+0.5000 (+16.7 %)");
  assert.equal(f.change(2.5, 5, "val/loss"), "−2.500 (−50.0 %)");
  assert.equal(f.change(3, 3, "val/loss"), "±0");
  assert.equal(f.change(3.0001, 3, "val/loss"), "+1.0e-4 (+0.003 %)");
  assert.equal(f.change(3.002, 3, "val/loss"), "+0.002000 (+0.07 %)");
  assert.equal(f.change(2.9999999, 3, "val/loss"), "−1.0e-7");
  // A share that rounds to nothing is no difference.
  assert.deepEqual([f.change(3, 3, null), f.change(3.001, 3, null), f.change(3.003, 3, null)], [null, null, "+0.1 %"]);
  assert.equal(f.change(150, 100, null), "+50.0 %");
  assert.equal(f.change(1, 0, "val/loss"), "+1.000");
  assert.equal(f.change(1, 0, null), null);
  for (const [value, base] of [[null, 1], [1, null], ["NaN", 1], ["Infinity", "Infinity"]]) assert.equal(f.change(value, base, "val/loss"), null);
  assert.deepEqual([f.change(0.7082, 0.7076, "top1_acc"), f.change(0.4, 0.5234, "mfu"), f.change(0.70761, 0.7076, "top1_acc")], ["+0.06 pp", "−12.34 pp", "+0.001 pp"]);
});

test("values of a spec are as one would write them", () => {
  const shown = [
    [3e-4, "train.optimizer.lr", "3.0e-4"],
    [1e-8, "train.optimizer.eps", "1.0e-8"],
    [1234567, "train.steps", "1,234,567"],
    [1234567, "train.seed", "1234567"],
    [0.1, "train.optimizer.weight_decay", "0.1"],
    [1e-5, "train.x", "1.0e-5"],
    [0, "train.x", "0"],
    ["llama-1b", "train.model", "llama-1b"],
    ["0123456789abcdef", "code.digest", "0123456789ab"],
    [true, "train.compile", "true"],
    [[0.9, 0.95], "train.optimizer.betas", "[0.9,0.95]"],
    [0.1 + 0.2, "train.x", "0.3"],
    [2 / 3, "train.x", "0.666667"],
    [-1234567.25, "train.x", "-1234570"],
    [[0.1 + 0.2, 16777217], "train.x", "[0.3,16777217]"],
    [null, "train.x", "—"],
  ];
  for (const [value, path, text] of shown) assert.equal(f.specValue(value, String(path)), text);
});

test("seeds and learning rates are known by the usual names of programs", () => {
  for (const name of ["train.seed", "trainer.args.random_seed", "trainer.args.manual-seed", "seed"]) assert.ok(f.isSeed(name));
  assert.ok(!f.isSeed("trainer.args.seeds") && !f.isSeed("trainer.args.use_seed"));
  assert.equal(f.specValue(0.003, "trainer.args.learning_rate"), "3.0e-3");
  assert.deepEqual([f.atPoint({ "optimizer.lr": 0.003, width: 64 }), f.atPoint({})], [" at lr 3.0e-3, width 64", ""]);
});

test("a value of a spec that is shown shortened is known in full", () => {
  assert.equal(f.inFull(0.1 + 0.2, "train.x"), "0.30000000000000004");
  assert.equal(f.inFull(0.000314159, "train.optimizer.lr"), "0.000314159");
  assert.equal(f.inFull([0.1 + 0.2], "train.x"), "[0.30000000000000004]");
  assert.equal(f.inFull("0123456789abcdef", "code.digest"), "0123456789abcdef");
  for (const [value, path] of [[3e-4, "train.optimizer.lr"], [0.3, "train.x"], [1234567, "train.steps"], ["muon", "train.x"], [null, "train.x"], [true, "train.x"], [-5, "train.x"], [[0.9, 0.95], "train.x"]]) {
    assert.equal(f.inFull(value, String(path)), null, String(value));
  }
});
