/** The trials of a sweep as the runs of its charts: coloured by a parameter and in its order. */

import { along, DASHES, slots, stroke } from "../colour.js";
import * as f from "../format.js";
import { shareOf } from "./axis.js";

/**
 * @typedef {import("../types.js").SweepDetail} SweepDetail
 * @typedef {import("../types.js").TrialView} TrialView
 * @typedef {import("../charts/board.js").BoardRun} BoardRun
 */

/**
 * @param {SweepDetail} sweep
 * @param {string | null} parameter the one that colours show
 * @param {Set<string>} hidden ids of runs
 * @returns {BoardRun[]}
 */
export function boardRuns(sweep, parameter, hidden) {
  const all = [...sweep.trials, ...sweep.repetitions];
  const given = slots(all.map((trial) => trial.run.id));
  const text = (/** @type {TrialView} */ trial, /** @type {string[]} */ paths) =>
    paths.map((path) => `${path.split(".").at(-1)} ${f.specValue(trial.parameters[path], path)}`).join(", ");
  const paths = sweep.parameters.filter((path) => !f.isSeed(path));
  // Colours show the chosen parameter; dashes distinguish trials that differ in another one.
  const others = paths.filter((path) => path !== parameter);
  const besides = [...new Set(all.map((trial) => text(trial, others)))];
  const values = all.map((trial) => trial.parameters[parameter ?? ""]);
  return all.map((trial) => {
    const value = trial.parameters[parameter ?? ""];
    return {
      id: trial.run.id,
      label: text(trial, [...paths, ...Object.keys(trial.parameters).filter(f.isSeed)]),
      hidden: hidden.has(trial.run.id),
      cut: trial.run.state === "pruned",
      group: text(trial, paths),
      flopsPerToken: trial.run.flops_per_token,
      attempt: trial.run.attempt,
      ended: trial.run.ended_at !== null,
      stroke: () => {
        const at = shareOf(value, values);
        return at === null
          ? stroke(given.get(trial.run.id) ?? 0)
          : { colour: along(at), dash: DASHES[besides.indexOf(text(trial, others)) % DASHES.length] };
      },
    };
  });
}

/**
 * Return what decides how the curves are fetched and drawn.
 *
 * @param {string | null} parameter
 * @param {BoardRun[]} runs
 */
export const boardSign = (parameter, runs) => [
  parameter, ...runs.map(({ id, cut, attempt, ended }) => `${id} ${cut} ${attempt} ${ended}`),
].join();
