/** Format numbers, times and units for people. An unknown value is a dash, never 0. */

import { h } from "./dom.js";

export const NONE = "—";
/** What `cost` shows, as a tooltip. */
export const COST = "GPU-hours of all attempts so far, at the list price of that GPU, and what a plan without measured runs expects of the whole";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/**
 * Parse a number of a JSON answer, where NaN and infinities are strings.
 *
 * @param {unknown} wire
 * @returns {number | null}
 */
export function fromWire(wire) {
  if (wire === null || wire === undefined) return null;
  return typeof wire === "number" ? wire : Number(wire);
}

/** @param {string} text */
const minus = (text) => text.replace("-", "−");

/**
 * Return a formatter of numbers as they travel: it writes what is not known, or not finite, in one way.
 *
 * @template {any[]} Rest
 * @param {(value: number, ...rest: Rest) => string} write
 * @returns {(wire: unknown, ...rest: Rest) => string}
 */
const formatter = (write) => (wire, ...rest) => {
  const value = fromWire(wire);
  if (value === null) return NONE;
  if (Number.isFinite(value)) return write(value, ...rest);
  return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
};

/** Format a difference of losses: +0.012. */
export const signed = formatter((value) => (
  `${value > 0 ? "+" : ""}${Math.abs(value) < 1e3 ? minus(value.toFixed(3)) : number(value)}`
));

/** Format with four significant digits, for losses and norms. */
export const number = formatter((value, digits = 4) => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e7) return scientific(value, digits - 1);
  const text = value.toPrecision(digits);
  // 999.96 rounds up to 1,000, which has no decimals.
  return minus(Math.abs(Number(text)) >= 10 ** (digits - 1) ? WHOLE.format(value) : text);
});

/**
 * Format a learning rate: 3.0e-4, 3.16e-4; from 0.01 to 9,999 a plain number, as `lehr/base/formats.py` does. It has
 * at most `decimals`, and at least one.
 */
export const scientific = formatter((value, decimals = 2) => {
  const size = Math.abs(value);
  if (!size || (size >= 0.01 && size < 1e4)) return minus(String(Number(value.toPrecision(Math.max(4, decimals + 1)))));
  const [mantissa, exponent] = value.toExponential(decimals).split("e");
  const short = mantissa.replace(/(\.\d)(\d*?)0+$/, "$1$2");
  return minus(`${short}e`) + exponent.replace("+", "");
});

export const integer = formatter((value) => minus(WHOLE.format(value)));

/**
 * Return what follows a step: " of 1,000"; nothing where the number of steps is not known.
 *
 * @param {number} total 0 where it is not known
 */
export const ofTotal = (total) => (total ? ` of ${integer(total)}` : "");

const SI = ["", "k", "M", "G", "T", "P", "E", "Z"];
const BYTES = ["B", "kB", "MB", "GB", "TB"];

/**
 * Return a value with three digits and its power of 1,000. Rounding may raise the power.
 *
 * @param {number} value
 * @param {number} most
 * @returns {[number, number]}
 */
function thousands(value, most) {
  const size = Math.abs(value);
  const power = size < 1 ? 0 : Math.min(most, Math.floor(Math.log10(size) / 3));
  const scaled = Number((value / 1000 ** power).toPrecision(3));
  return Math.abs(scaled) >= 1000 && power < most ? [scaled / 1000, power + 1] : [scaled, power];
}

/** Format with three significant digits and an SI prefix: 402k, 31.2k, 1.24G. */
export const si = formatter((value, unit = "") => {
  const [scaled, power] = thousands(value, SI.length - 1);
  const whole = Number.isInteger(value) && power === 0;
  const tiny = value !== 0 && Math.abs(value) < 1e-3;
  const digits = whole ? integer(value) : tiny ? scientific(value) : minus(scaled.toPrecision(3));
  return digits + SI[power] + (unit ? ` ${unit}` : "");
});

export const bytes = formatter((value) => {
  const [scaled, power] = thousands(value, BYTES.length - 1);
  return `${minus(String(scaled))} ${BYTES[power]}`;
});

/** Format a share as a percentage. */
export const percent = formatter((value) => {
  const hundred = value * 100;
  return `${minus(Math.abs(hundred) < 10 && hundred !== 0 ? hundred.toPrecision(2) : hundred.toFixed(0))} %`;
});

/** Format a duration: 9 h 12 m. @param {unknown} wire seconds */
export function duration(wire) {
  const value = fromWire(wire);
  if (value === null || !Number.isFinite(value) || value < -1) return NONE;
  const ms = Number((value * 1000).toPrecision(3));
  if (ms > 0 && ms < 1000) return `${ms} ms`;
  const seconds = Math.max(0, Math.round(value));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 && minutes < 10 ? `${minutes} m ${seconds % 60} s` : `${minutes} m`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} m` : `${hours} h`;
  const days = Math.floor(hours / 24);
  return hours % 24 ? `${days} d ${hours % 24} h` : `${days} d`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const YEAR = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** Show a time of the day in the local zone. @param {number} at seconds since the epoch */
export const clock = (at) => CLOCK.format(at * 1000);

/** Return round times of the local zone between two times, at most ten. @param {number} began @param {number} ended */
export function hoursIn(began, ended) {
  const zone = new Date(ended * 1000).getTimezoneOffset() * 60;
  const every = [600, 1800, 3600, 10_800, 21_600].find((one) => (ended - began) / one < 10) ?? 43_200;
  const first = Math.ceil((began - zone) / every) * every + zone;
  return Array.from({ length: Math.max(0, Math.ceil((ended - first) / every)) }, (_, i) => first + i * every);
}

/**
 * Show a time in the local zone, with UTC on hover.
 *
 * @param {number | null | undefined} at seconds since the epoch
 * @param {{seconds?: boolean}} [options]
 * @returns {HTMLElement | string}
 */
export function time(at, options = {}) {
  if (at === null || at === undefined) return NONE;
  const date = new Date(at * 1000);
  const now = new Date();
  const ofDay = (options.seconds ? SECONDS : CLOCK).format(date);
  const sameDay = date.toDateString() === now.toDateString();
  const day = date.getFullYear() === now.getFullYear() ? DAY.format(date) : YEAR.format(date);
  return h(
    "time",
    { datetime: date.toISOString(), title: `${date.toISOString().slice(0, 19).replace("T", " ")} UTC` },
    sameDay ? ofDay : `${day} ${ofDay}`,
  );
}

/** Whether a metric is a share, of 1 in all. A script may log its own in percent. @param {string} name */
export const isShare = (name) => name === "mfu" || name === "top1_acc" || /^system\/.*utilization$/.test(name);

/**
 * Format a metric's value in its unit; of an accuracy with four digits, since runs differ in the last ones.
 *
 * @param {string} name
 * @param {unknown} wire
 */
export function metric(name, wire) {
  if (name === "tokens_per_s") return si(wire, "tok/s");
  const value = fromWire(wire);
  if (name === "top1_acc" && value !== null && Number.isFinite(value)) return `${number(value * 100)} %`;
  if (isShare(name)) return percent(wire);
  if (name === "data/epoch") return si(wire);
  if (/_bytes(_per_s)?$/.test(name)) return `${bytes(wire)}${name.endsWith("_s") ? "/s" : ""}`;
  if (name.endsWith("_s")) return duration2(wire);
  if (name.endsWith("/lr") || name === "lr") return scientific(wire);
  return number(wire);
}

/** Format a short duration: 32.4 ms, 1.23 s. @param {unknown} wire seconds */
function duration2(wire) {
  const value = fromWire(wire);
  if (value === null || !Number.isFinite(value)) return number(wire);
  if (value <= 0) return `${number(value)} s`;
  const digits = Number(value.toPrecision(3));
  if (digits < 1e-3) return `${Number((digits * 1e6).toPrecision(3))} µs`;
  return digits < 1 ? `${Number((digits * 1e3).toPrecision(3))} ms` : `${digits} s`;
}

/** Format the size of a relative difference: 12.3 %, 0.07 %; null if it rounds to nothing. @param {number} share */
function apart(share) {
  const hundred = Math.abs(share) * 100;
  if (hundred >= 0.095) return `${hundred.toFixed(1)} %`;
  return hundred >= 0.001 ? `${Number(hundred.toPrecision(1))} %` : null;
}

/**
 * Format the difference of a value to another: "+0.5 (+16.7 %)"; of shares in percentage points: "+0.06 pp".
 *
 * @param {unknown} wire
 * @param {unknown} base
 * @param {string | null} name of the metric; null for the percentage only
 * @returns {string | null} null if a difference cannot be computed, or the percentage alone rounds to nothing
 */
export function change(wire, base, name) {
  const a = fromWire(wire);
  const b = fromWire(base);
  if (a === null || b === null || !Number.isFinite(a - b)) return null;
  const sign = a >= b ? "+" : "−";
  if (name === null) return b === 0 || Math.abs((a - b) / b) < 0.0005 ? null : `${sign}${apart((a - b) / b)}`;
  if (a === b) return "±0";
  const share = b === 0 ? null : apart((a - b) / b);
  const points = Math.abs(a - b) * 100;
  if (isShare(name)) return `${sign}${points < 0.01 ? points.toPrecision(1) : points.toFixed(2)} pp`;
  const size = `${sign}${metric(name, Math.abs(a - b))}`;
  return share === null ? size : `${size} (${sign}${share})`;
}

/** How many digits a value of a spec has, if it is not whole. */
const DIGITS = 6;
const short = (/** @type {number} */ value) => (Number.isInteger(value) ? value : Number(value.toPrecision(DIGITS)));
const shortOf = (/** @type {string} */ _, /** @type {unknown} */ value) => (
  typeof value === "number" ? short(value) : value
);

/** Return whether a parameter, by its path, is the seed; as in `lehr.names`. @param {string} path */
export function isSeed(path) {
  return /(^|\.)((random|manual|rng|global|data)[_-])?seed$/i.test(path);
}

/**
 * Format a value of a spec: learning rates in scientific notation, integers with separators.
 *
 * @param {unknown} value
 * @param {string} [path]
 */
export function specValue(value, path = "") {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") {
    if (/(^|[._-])(lr|eps|learning[_-]rate)$/.test(path)) return scientific(value, 3);
    if (isSeed(path)) return String(value);
    if (Number.isInteger(value)) return integer(value);
    return Math.abs(value) < 1e-3 && value !== 0 ? scientific(value, 3) : String(short(value));
  }
  if (typeof value === "string") return path === "code.digest" ? value.slice(0, 12) : value;
  return JSON.stringify(value, shortOf);
}

/**
 * Return " at lr 1.0e-3": the point of a sweep; empty for one over seeds alone.
 *
 * @param {Record<string, unknown>} parameters
 */
export function atPoint(parameters) {
  const values = Object.entries(parameters)
    .map(([path, value]) => `${path.split(".").at(-1)} ${specValue(value, path)}`);
  return values.length ? ` at ${values.join(", ")}` : "";
}

/**
 * Return a value of a spec in all its digits if `specValue` shows fewer; null if it shows all.
 *
 * @param {unknown} value
 * @param {string} [path]
 * @returns {string | null}
 */
export function inFull(value, path = "") {
  if (typeof value === "number") {
    return Number(specValue(value, path).replaceAll(",", "").replaceAll("−", "-")) === value ? null : String(value);
  }
  if (typeof value === "string") return specValue(value, path) === value ? null : value;
  const whole = JSON.stringify(value);
  return value !== null && typeof value === "object" && JSON.stringify(value, shortOf) !== whole ? whole : null;
}

/**
 * Show a value of a spec, with all its digits on hover.
 *
 * @param {unknown} value
 * @param {string} [path]
 * @returns {HTMLElement | string}
 */
export function specCell(value, path = "") {
  const whole = inFull(value, path);
  return whole === null ? specValue(value, path) : h("span", { title: whole }, specValue(value, path));
}

/**
 * Flatten a spec into paths.
 *
 * @param {unknown} value
 * @param {string} [path]
 * @param {Map<string, unknown>} [into]
 * @returns {Map<string, unknown>} path -> value; a list of scalars is one value
 */
export function flatten(value, path = "", into = new Map()) {
  const nested = value !== null && typeof value === "object" && !Array.isArray(value);
  if (!nested || Object.keys(/** @type {object} */ (value)).length === 0) {
    if (path) into.set(path, value);
    return into;
  }
  for (const [key, inner] of Object.entries(/** @type {object} */ (value))) {
    flatten(inner, path ? `${path}.${key}` : key, into);
  }
  return into;
}

/** Say which runs are in no mean, because they end far worse than the others. @param {string[]} names */
export function farNote(names) {
  if (!names.length) return "";
  const some = [...names.slice(0, 3), ...(names.length > 3 ? ["…"] : [])].join(", ");
  return `, ${integer(names.length)} far run${names.length > 1 ? "s" : ""} left out: ${some}`;
}
