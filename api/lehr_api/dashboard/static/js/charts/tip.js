/** What the cursor shows: values of the lines around the pointer, what happened there, and the sample by then. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { integer, metric } from "../format.js";
import { toast } from "../notices.js";
import { write } from "../urlstate.js";
import { stepOf } from "./axes.js";
import { swatch } from "./drawing.js";
/** @import { SampleView } from "../types.js" */

/** The most values in the list; of more, it has those around the pointer. */
const READINGS = 12;
/** The height of a line of the list, and of its edges with the step and the numbers of those left out. */
const [ROW_PX, REST_PX] = [18, 76];

/** Return how many values a plot has room for. @param {number} height in pixels */
export const roomFor = (height) => Math.max(1, Math.min(READINGS, Math.floor((height - REST_PX) / ROW_PX)));

/**
 * Return the values that the list shows, the best first, and how many are left out on each side.
 *
 * @template {{line: {run: string}}} T
 * @param {T[]} values the best first
 * @param {string | null} run whose value is in the list
 * @param {number} most
 * @returns {{better: number, shown: T[], more: number}}
 */
export function around(values, run, most = READINGS) {
  const near = Math.max(0, values.findIndex(({ line }) => line.run === run));
  const better = Math.max(0, Math.min(near - Math.floor(most / 2), values.length - most));
  const shown = values.slice(better, better + most);
  return { better, shown, more: values.length - better - shown.length };
}

/**
 * Return a deviation with as many decimals as its mean has, null if that has none.
 *
 * @param {string} mean
 * @param {number} sd
 */
export const asExact = (mean, sd) => {
  const decimals = /^[-−]?\d+\.(\d+)$/.exec(mean);
  return decimals && sd.toFixed(decimals[1].length);
};

/**
 * @param {HTMLElement} tip
 * @param {import("./lines.js").Place} place
 * @param {import("./chart.js").Chart} chart the one under the pointer
 * @param {boolean} many whether there are several runs
 */
export function showTip(tip, place, chart, many) {
  const values = many || chart.lines.length > 1 ? chart.values(place.step) : [];
  const marks = chart.marksAt(place);
  tip.hidden = !values.length && !marks.length;
  const { better, shown, more } = around(values, place.run, roomFor(chart.plot.clientHeight));
  const unit = (/** @type {{metric?: string}} */ line) => line.metric ?? chart.name;
  const leftOut = (/** @type {number} */ n, /** @type {string} */ word) => n > 0 && h("div.dim", {}, `${n} ${word}`);
  fill(
    tip,
    values.length > 0 && h(
      "div.tip-step.dim", { key: "step" }, stepOf(chart.look.x, place), shown.some(({ sd }) => sd !== null) && ", mean ± sd",
    ),
    leftOut(better, chart.goal ? "better" : "lower"),
    shown.map(({ line, value, sd }) =>
      h(
        line.run === place.run ? "div.tip-row.near" : "div.tip-row", { key: `${line.run} ${line.metric ?? ""}` },
        swatch(line), " ", h("b", {}, metric(unit(line), value)),
        sd !== null && ` ± ${asExact(metric(unit(line), value), sd) ?? metric(unit(line), sd)}`, ` ${line.label}`,
      ),
    ),
    leftOut(more, chart.goal ? "more" : "higher"),
    marks.map((text) => h("div.tip-mark", {}, text)),
  );
  if (tip.parentElement !== chart.plot) chart.plot.append(tip);
  // Place the list on the side of the plot opposite to the pointer.
  tip.classList.toggle("left", chart.cursorIsRight);
}

/**
 * Return the newest sample at or before a step.
 *
 * @param {SampleView[]} samples
 * @param {number} step
 * @returns {SampleView | null}
 */
export const sampleAt = (samples, step) => samples.filter((one) => one.step <= step)
  .sort((a, b) => b.step - a.step || b.attempt - a.attempt)[0] ?? null;

/**
 * Show the text that a run had written by a step, and the way to its log.
 *
 * @param {HTMLElement} place
 * @param {{id: string, label: string, step: number, pins: string, onLog?: (step: number) => void,
 *   isLeft: () => boolean}} moment `isLeft`: whether the cursor has gone on
 */
export async function showMoment(place, { id, label, step, pins, onLog, isLeft }) {
  // Without an answer the values are shown all the same, and the charts show that the server is away.
  const sample = sampleAt(await get(`/runs/${id}/samples`).catch(() => []), step);
  if (isLeft()) return;
  const copy = async () => {
    // The pins are those of this browser, until the address has them.
    write({ pins });
    // Browsers give the clipboard to pages of https and of this machine alone.
    const copied = await navigator.clipboard?.writeText(location.href).then(() => true, () => false);
    toast(copied ? "The link is copied." : "The address of this page has the moment: copy it.");
  };
  place.hidden = false;
  fill(place, onLog && h(
    "button", { type: "button", onclick: () => onLog(step) }, `Log at step ${integer(step)}`,
  ), " ", h("button", { key: "link", type: "button", onclick: copy }, "Copy link to this moment"), sample && h(
    "div.moment-sample", {},
    h("span.dim", {}, `sample of step ${integer(sample.step)}${label && `, ${label}`}: `), sampleText(sample),
  ));
}

/** Mark the prompt of a sample, which its text may repeat. @param {SampleView} sample */
export const sampleText = ({ prompt, text }) => [
  h("span.prompt", {}, prompt), text.startsWith(prompt) ? text.slice(prompt.length) : text,
];
