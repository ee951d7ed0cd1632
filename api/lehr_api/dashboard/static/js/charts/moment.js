/** What a run wrote at one step: the newest sample of its text by then, and its log lines of that step. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { integer } from "../format.js";

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
