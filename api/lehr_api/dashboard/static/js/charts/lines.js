/** The lines of a chart: one for each run and metric, or for each group of runs. */

import { DASHES, stroke } from "../colour.js";
import { partsOf } from "./expression.js";
import { bySeeds } from "./seeds.js";

/**
 * @typedef {import("./chart.js").Line} Line
 * @typedef {import("./run-curves.js").BoardRun} BoardRun
 */

/**
 * @param {string} name of a metric, an expression, or several of them
 * @param {BoardRun[]} runs
 * @param {(run: string, part: string) => import("./points.js").Curve | null | undefined} curveOf
 * @param {"seeds" | "runs" | null} means whether runs of a group are one line, and what its runs are
 * @returns {{lines: Line[], drawnAs: Map<string, string>}} `drawnAs`: the run whose line stands for a member of a group
 */
export function linesOf(name, runs, curveOf, means) {
  const parts = partsOf(name);
  const shown = runs.filter((run) => !run.hidden);
  /** @type {Map<string, string>} */
  const drawnAs = new Map();
  const lines = parts.flatMap((part, i) => {
    const several = parts.length > 1;
    /** @type {Line[]} */
    const own = [];
    for (const run of shown) {
      const curve = curveOf(run.id, part);
      if (curve) {
        own.push({
          run: run.id, label: several ? labelOf(run, part, shown.length) : run.label,
          ...strokeOf(run, i, shown.length), ...(several && { metric: part }), cut: run.cut, ended: run.ended, curve
        });
      }
    }
    if (!means) return own;
    const groups = new Map(shown.map(({ id, group }) => [id, group && (several ? `${group} · ${part}` : group)]));
    const drawn = bySeeds(own, ({ run }) => groups.get(run) ?? null, means);
    for (const { run, members } of drawn) for (const one of members ?? [run]) drawnAs.set(one, run);
    return drawn;
  });
  return { lines, drawnAs };
}

/** @param {BoardRun} run @param {string} part @param {number} count of runs */
const labelOf = (run, part, count) => (count === 1 ? part : `${run.label} · ${part}`);

/**
 * Return the colour of a run's line: of a single run each metric has its own, of several each metric has its dash, in
 * turn.
 *
 * @param {BoardRun} run
 * @param {number} metric
 * @param {number} count of runs
 * @returns {Pick<Line, "colour" | "dash">}
 */
function strokeOf(run, metric, count) {
  const own = run.stroke();
  if (metric === 0) return own;
  if (count > 1) return { colour: own.colour, dash: DASHES[(metric + DASHES.indexOf(own.dash)) % DASHES.length] };
  const others = Array.from({ length: 10 }, (_, i) => stroke(i)).filter(({ colour }) => colour !== own.colour);
  return others[(metric - 1) % others.length];
}
