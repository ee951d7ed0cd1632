/** What the cursor shows: values of the lines around the pointer, what happened there, and what was written. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { integer, metric } from "../format.js";
import { swatch } from "./drawing.js";

/** The most values in the list; of more, it has those around the pointer. */
const READINGS = 12;

/**
 * Return the values that the list shows, the best first, and how many are left out on each side.
 *
 * @template {{line: {run: string}}} T
 * @param {T[]} values the best first
 * @param {string | null} run whose value is in the list
 * @returns {{better: number, shown: T[], more: number}}
 */
export function around(values, run) {
  const near = Math.max(0, values.findIndex(({ line }) => line.run === run));
  const better = Math.max(0, Math.min(near - Math.floor(READINGS / 2), values.length - READINGS));
  const shown = values.slice(better, better + READINGS);
  return { better, shown, more: values.length - better - shown.length };
}

/**
 * @param {HTMLElement} tip
 * @param {import("./chart.js").Place} place
 * @param {import("./chart.js").Chart} chart the one under the pointer
 * @param {boolean} many whether there are several runs
 */
export function showTip(tip, place, chart, many) {
  const values = many || chart.lines.length > 1 ? chart.values(place.step) : [];
  const marks = chart.marksAt(place);
  tip.hidden = !values.length && !marks.length;
  const { better, shown, more } = around(values, place.run);
  const leftOut = (/** @type {number} */ n, /** @type {string} */ word) => n > 0 && h("div.dim", {}, `${n} ${word}`);
  fill(
    tip,
    values.length > 0 && h("div.tip-step", { key: "step" }, `step ${integer(place.step)}`),
    leftOut(better, chart.goal ? "better" : "lower"),
    shown.map(({ line, value }) =>
      h(
        line.run === place.run ? "div.tip-row.near" : "div.tip-row", { key: `${line.run} ${line.metric ?? ""}` },
        swatch(line), " ", h("b", {}, metric(line.metric ?? chart.name, value)), ` ${line.label}`,
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
 * @typedef {import("../types.js").SampleView} SampleView
 *
 * @typedef {object} Moment
 * @property {string} run
 * @property {number} step
 * @property {SampleView | null} sample
 * @property {string[]} lines
 */

/** Bytes after the first line of a step that are looked through for more of it. */
const CHUNK = 4000;
const MOST_LINES = 6;
/** In how many logs of a run that was resumed often the step is looked for, the newest first. */
const MOST_LOGS = 3;
/** Programs may pad the number of a step. */
const PAD = 5;

/**
 * Return the newest sample at or before a step.
 *
 * @param {SampleView[]} samples
 * @param {number} step
 * @returns {SampleView | null}
 */
export function sampleAt(samples, step) {
  /** @type {SampleView | null} */
  let found = null;
  for (const one of samples) {
    if (
      one.step <= step && (!found || one.step > found.step || (one.step === found.step && one.attempt >= found.attempt))
    ) found = one;
  }
  return found;
}

/** @param {string} line @returns {number | null} the step that a line names */
function stepOf(line) {
  const found = /\bstep[\s:=]*([\d,]+)/i.exec(line);
  return found ? Number(found[1].replaceAll(",", "")) : null;
}

/**
 * Return the lines of a step: from the first that names it to the next that names another.
 *
 * @param {string} text of a log
 * @param {number} step
 */
export function linesOf(text, step) {
  const lines = text.split("\n");
  const first = lines.findIndex((line) => stepOf(line) === step);
  if (first < 0) return [];
  const next = lines.findIndex((line, i) => i > first && stepOf(line) !== null && stepOf(line) !== step);
  return lines.slice(first, next < 0 ? undefined : next).filter((line) => line.trim()).slice(0, MOST_LINES);
}

/** @param {string} run @param {number} step */
async function logLines(run, step) {
  const logs = /** @type {{name: string, attempt: number}[]} */ (await get(`/runs/${run}/logs`));
  const newest = logs.filter(({ name }) => name === "rank-0.log" || name === logs[0].name)
    .sort((a, b) => b.attempt - a.attempt).slice(0, MOST_LOGS);
  for (const { name, attempt } of newest) {
    for (const text of [`step ${step}`, `step ${String(step).padStart(PAD)}`]) {
      const hits = (await get(`/runs/${run}/logs/${name}/search`, { text, attempt, limit: 100 })).lines;
      const hit = hits.find((/** @type {{text: string}} */ one) => stepOf(one.text) === step);
      if (hit) {
        return linesOf(
          (await get(`/runs/${run}/logs/${name}`, { attempt, offset: hit.offset, limit: CHUNK })).text, step,
        );
      }
    }
  }
  return [];
}

/**
 * @param {string} run
 * @param {number} step
 * @returns {Promise<Moment>}
 */
export async function momentOf(run, step) {
  const [samples, lines] = await Promise.all([get(`/runs/${run}/samples`), logLines(run, step)]);
  return { run, step, sample: sampleAt(samples, step), lines };
}

/**
 * @param {HTMLElement} place
 * @param {Moment | null} moment
 * @param {string} label of its run, among several
 */
export function showMoment(place, moment, label) {
  place.hidden = !moment || (!moment.sample && !moment.lines.length);
  if (!moment) return;
  const { sample, lines, step } = moment;
  fill(
    place,
    sample && h(
      "div.moment-sample", {},
      h("span.dim", {}, `sample of step ${integer(sample.step)}${label ? `, ${label}` : ""}: `),
      h("span.prompt", {}, sample.prompt),
      sample.text.startsWith(sample.prompt) ? sample.text.slice(sample.prompt.length) : sample.text,
    ),
    lines.length > 0 && h("pre", { "aria-label": `Log lines of step ${integer(step)}` }, lines.join("\n")),
  );
}
