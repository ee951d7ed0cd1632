/**
 * Colours of runs. A run has the same colour on every page, whatever other runs are beside it.
 *
 * Runs of the same colour that are shown together differ in their dashes. The ten colours were searched for: the
 * smallest distance of two, and of one to the mark of a
 * failure, is as large as possible for trichromats and colour-blind people, with a contrast of 3:1 to the page and no
 * grey.
 * A colour of the dark theme has about the hue of its twin.
 * lehr/analysis/figure.py has the same rule for figures in notebooks.
 */

import { h } from "./dom.js";
import { fromWire } from "./format.js";

const LIGHT = [
  "#6666bb", "#ee4488", "#005544", "#aa8866", "#cc66ee", "#0099aa", "#663311", "#113399", "#777744", "#994488",
];
const DARK = [
  "#bbbbee", "#bb5577", "#44ddaa", "#ddcc33", "#7766cc", "#338899", "#997755", "#2299ff", "#889900", "#dd99bb",
];
const COLOURS = LIGHT.length;
export const DASHES = /** @type {const} */ (["solid", "dash", "dashdot", "dot"]);

/** viridis: perceptually uniform, for colour-blind people as well. */
const VIRIDIS = [
  "#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725",
];

/** A colour of each theme, in CSS: the page shows that of its own. @param {string} light @param {string} dark */
const themed = (light, dark) => `light-dark(${light}, ${dark})`;

const utf8 = new TextEncoder();

/** Return the colour slot of a run: FNV-1a of its id. @param {string} id */
export function slot(id) {
  let hash = 0x811c9dc5;
  for (const byte of utf8.encode(id)) {
    hash ^= byte;
    hash = Math.imul(hash, 0x01000193) >>> 0;
  }
  return hash % COLOURS;
}

/** @typedef {{colour: string, dash: typeof DASHES[number]}} Stroke */

/** @param {number} index @returns {Stroke} */
export function stroke(index) {
  const colour = themed(LIGHT[index % COLOURS], DARK[index % COLOURS]);
  return { colour, dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] };
}

/**
 * Assign a slot to each of these words: its own, or the next that is free. So ten have ten colours, whatever their
 * order; further ones have another dash.
 *
 * @param {string[]} words
 * @returns {Map<string, number>}
 */
function distinct(words) {
  /** @type {Map<string, number>} */
  const given = new Map();
  const taken = new Set();
  for (const word of [...new Set(words)].sort()) {
    const near = [...Array(COLOURS * DASHES.length).keys()].map(
      (i) => ((slot(word) + i) % COLOURS) + COLOURS * Math.floor(i / COLOURS),
    );
    given.set(word, near.find((one) => !taken.has(one)) ?? slot(word));
    taken.add(given.get(word));
  }
  return given;
}

/**
 * Assign a slot to each of the runs and groups shown together. Groups are distinct; a run has its own, or the same
 * colour with another dash if it has the colour of another one. Their order does not matter, so that sorting changes no
 * line. Beyond four runs of a colour, dashes repeat.
 *
 * @param {string[]} ids
 * @param {string[]} [groups]
 * @returns {Map<string, number>}
 */
export function slots(ids, groups = []) {
  const given = distinct(groups);
  const taken = Array(COLOURS).fill(0);
  for (const one of given.values()) taken[one % COLOURS] += 1;
  for (const id of [...new Set(ids)].sort()) {
    given.set(id, slot(id) + COLOURS * (taken[slot(id)]++ % DASHES.length));
  }
  return given;
}

/** Return a colour of a scale, for ordered values. @param {number} share from 0 to 1 */
export function along(share) {
  const between = (/** @type {number} */ from, /** @type {number} */ to) => {
    const at = from + Math.min(1, Math.max(0, share)) * (to - from);
    const i = Math.min(VIRIDIS.length - 2, Math.floor(at));
    return mix(VIRIDIS[i], VIRIDIS[i + 1], at - i);
  };
  // Leave out the ends, whose contrast with the page is below 3:1.
  return themed(between(0, 5.35), between(2.9, 9));
}

/** Of no value, and of one that is not finite. */
export const [ABSENT, BROKEN] = ["var(--wait)", "var(--bad)"];
/** So many values have a place each in the key; of more numbers there are the ends and the middle. */
const MOST_TICKS = 6;

/**
 * Return the colours of the values of a setting or metric: ordered for numbers, distinct for texts. The same values
 * have the same colours on every page, and in reports (`scale_of` of lehr/analysis/figure.py).
 *
 * @param {unknown[]} values of all that is shown; null and undefined where there is none
 * @param {string} [title] what they are
 * @param {(value: any) => string} [label] writes one of them
 */
export function scaleOf(values, title = "", label = String) {
  const text = (/** @type {unknown} */ value) => (typeof value === "string" ? value : JSON.stringify(value));
  const number = (/** @type {unknown} */ value) => (
    typeof value === "number" || ["NaN", "Infinity", "-Infinity"].includes(String(value)) ? fromWire(value) : null
  );
  const all = values.filter((value) => value !== null && value !== undefined);
  const isNumber = all.length > 0 && all.every((value) => number(value) !== null);
  const numbers = isNumber ? [...new Set(all.map(Number))].filter(Number.isFinite).sort((a, b) => a - b) : [];
  const [low = 0, high = low] = [numbers[0], numbers.at(-1)];
  const bend = low > 0 && high / low >= 4 ? Math.log : (/** @type {number} */ value) => value;
  const back = bend === Math.log ? Math.exp : bend;
  const words = isNumber ? [] : [...new Set(all.map(text))].sort();
  const taken = distinct(words);
  /** Where a value lies between the lowest and the highest, or the first and the last word. @param {any} value */
  const share = (value) => {
    if (!isNumber) return words.length > 1 ? words.indexOf(text(value)) / (words.length - 1) : 0.5;
    return low === high ? 0.5 : (bend(value) - bend(low)) / (bend(high) - bend(low));
  };
  const colour = (/** @type {unknown} */ value) => {
    if (value === null || value === undefined) return ABSENT;
    if (!isNumber) return stroke(taken.get(text(value)) ?? slot(text(value))).colour;
    const known = number(value) ?? NaN;
    if (!Number.isFinite(known)) return BROKEN;
    return along(share(known));
  };
  const between = [low, back((bend(low) + bend(high)) / 2), high].map((value) => Number(value.toPrecision(3)));
  const named = isNumber ? (numbers.length > MOST_TICKS ? between : numbers) : words;
  return {
    kind: isNumber ? "number" : "text", title, colour, share, ordered: numbers.length > MOST_TICKS,
    ticks: named.map((value) => ({ value, label: label(value) })),
  };
}

/** @typedef {ReturnType<typeof scaleOf>} Scale */

/**
 * Return the key of a scale: its values with their colours, or of many numbers a strip.
 *
 * @param {Omit<Scale, "share">} scale
 */
export function keyOf({ title, ticks, colour, ordered }) {
  const strip = { "--from": along(0), "--middle": along(0.5), "--to": along(1) };
  return h(
    "p.scale", { "aria-label": `Colours: ${title}` }, h("span.dim", {}, title), ordered
      ? [ticks[0].label, h("i.colour-key", { vars: strip, title: `middle: ${ticks[1].label}` }), ticks[2].label]
      : ticks.map(({ value, label }) => h("span", {}, h("i.dot", { vars: { "--key": colour(value) } }), label)),
  );
}

/** @param {string} a @param {string} b @param {number} t */
function mix(a, b, t) {
  const part = (/** @type {string} */ hex, /** @type {number} */ i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  const channel = (/** @type {number} */ i) => Math.round(part(a, i) + (part(b, i) - part(a, i)) * t);
  return `rgb(${channel(0)}, ${channel(1)}, ${channel(2)})`;
}
