/** Positions of values on a scale, for a parameter's axis and a trial's colour; the trials as runs of the charts. */

import { boardRun } from "../charts/lines.js";
import { DASHES, scaleOf } from "../colour.js";
import * as f from "../format.js";
import { shortName } from "../runs/configs.js";
/** @import { SweepDetail, TrialView } from "../types.js" */
/** @import { BoardRun } from "../charts/lines.js" */

/**
 * @typedef {object} Axis
 * @property {string} title
 * @property {(trial: TrialView) => number | null} at from 0 (below) to 1 (above)
 * @property {{at: number, label: string}[]} ticks
 * @property {number} top where the finite values end
 * @property {(trial: TrialView) => string | null} [words] the trial's value with the name of the axis
 */

/** Where the strip for values that are not finite begins, if there are any: numbers end below it. */
const STRIP = 0.92;
/** The share of an axis that a press of an arrow key leaves out. */
const STEP = 0.1;

/**
 * Return a part of an axis without its lower or upper end; of the values that are not finite first their strip alone.
 *
 * @param {[number, number]} part
 * @param {boolean} lower whether the lower end is left out
 * @param {number} top where the finite values end
 * @returns {[number, number]} the same part if it is too small
 */
export function narrowed([from, to], lower, top) {
  if (to - from <= STEP) return [from, to];
  return lower ? [from + STEP, to] : [from, to > top ? top : to - STEP];
}

/** How far apart the labels of an axis are at least, as a share of it. */
const APART = 0.05;

/**
 * Return the axis of a value: of numbers, also if some are not finite, or of names.
 *
 * @param {string} title
 * @param {(trial: TrialView) => any} value
 * @param {TrialView[]} trials
 * @param {(value: any) => string} label
 * @returns {Axis}
 */
export function axisOf(title, value, trials, label) {
  const values = trials.map(value).filter((v) => v !== null && v !== undefined);
  const { kind, ticks, share } = scaleOf(values, title, label);
  const isBroken = (/** @type {unknown} */ v) => kind === "number" && !Number.isFinite(v);
  const strip = [...new Set(values.filter(isBroken).map(label))].join(", ");
  const top = strip ? STRIP : 1;
  // Labels of values that are nearly equal would lie on each other.
  const labelOf = (/** @type {(typeof ticks)[0]} */ one) => (kind === "text" ? String(one.value) : one.label);
  const apart = ticks.map((one) => ({ at: top * share(one.value), label: labelOf(one) }))
    .reduce((/** @type {Axis["ticks"]} */ kept, tick) => (
      kept.length && tick.at - kept[kept.length - 1].at < APART ? kept : [...kept, tick]
    ), []);
  return {
    title, top,
    words: (trial) => (value(trial) === null || value(trial) === undefined ? null : `${title} ${label(value(trial))}`),
    at: (trial) => {
      const v = value(trial);
      return v === null || v === undefined ? null : isBroken(v) ? 1 : top * share(v);
    },
    ticks: [...apart, ...(strip ? [{ at: 1, label: strip }] : [])],
  };
}

/** @param {TrialView} trial */
export const result = (trial) => f.fromWire(trial.compared_value ?? trial.value);

/** Return the parameters of several values, but for the seed. @param {import("../types.js").SweepDetail} sweep */
export const varying = ({ parameters, trials }) => parameters.filter(
  (path) => !f.isSeed(path) && new Set(trials.map((trial) => JSON.stringify(trial.parameters[path]))).size > 1,
);

/** @param {string} path @param {string[]} paths @param {TrialView[]} trials */
export const parameterAxis = (path, paths, trials) =>
  axisOf(shortName(path, paths), (trial) => trial.parameters[path], trials, (v) => f.specValue(v, path));

/**
 * Return how trials look in the figure over a parameter, in the table and in the charts: colours show the next
 * parameter, or this one where it is alone, and shapes another one with few values.
 *
 * @param {SweepDetail} sweep
 * @param {string | null} parameter on the x axis
 * @param {ReturnType<typeof import("../colour_by.js").scaleBy>} [by] what colours show instead
 */
export function looksOf(sweep, parameter, by = null) {
  const all = [...sweep.trials, ...sweep.repetitions];
  const paths = varying(sweep);
  const others = paths.filter((path) => path !== parameter);
  const texts = (/** @type {string} */ path) =>
    [...new Set(all.map((trial) => JSON.stringify(trial.parameters[path])))].sort();
  const shaped = others.length > 1 ? (others.findLast((path) => texts(path).length <= DASHES.length) ?? "") : "";
  const coloured = others.find((path) => path !== shaped) ?? parameter ?? "";
  const value = (/** @type {TrialView} */ trial) => (by ? by.value(trial.run) : trial.parameters[coloured]);
  const title = shortName(coloured, paths);
  const shapes = shaped ? texts(shaped) : [];
  const scale = by?.scale ?? scaleOf(all.map(value), title, (one) => f.specValue(one, coloured));
  return {
    scale, shapes, title,
    of: (/** @type {TrialView} */ trial) => ({
      colour: scale.colour(value(trial)),
      shape: Math.max(0, shapes.indexOf(JSON.stringify(trial.parameters[shaped]))),
    }),
  };
}

/**
 * @param {SweepDetail} sweep
 * @param {ReturnType<typeof looksOf>} looks
 * @param {Set<string>} hidden ids of runs
 * @returns {BoardRun[]}
 */
export function boardRuns(sweep, { of }, hidden) {
  const text = (/** @type {TrialView} */ trial, /** @type {string[]} */ paths) =>
    paths.map((path) => `${path.split(".").at(-1)} ${f.specValue(trial.parameters[path], path)}`).join(", ");
  const paths = sweep.parameters.filter((path) => !f.isSeed(path));
  return [...sweep.trials, ...sweep.repetitions].map((trial) => boardRun(trial.run, {
    label: text(trial, [...paths, ...Object.keys(trial.parameters).filter(f.isSeed)]),
    hidden: hidden.has(trial.run.id),
    cut: trial.run.state === "pruned",
    group: text(trial, paths),
    stroke: { colour: of(trial).colour, dash: DASHES[of(trial).shape] },
  }));
}

/**
 * Return what decides how the curves are fetched and drawn.
 *
 * @param {BoardRun[]} runs
 */
export const boardSign = (runs) => runs
  .map(({ id, cut, attempt, ended, stroke }) => `${id} ${cut} ${attempt} ${ended} ${JSON.stringify(stroke)}`).join();
