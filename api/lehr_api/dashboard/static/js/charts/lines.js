/** The lines of a chart: one for each run and metric, continuing its ancestors, or one for each group of runs. */

import { along, DASHES, keyOf as scaleKey, stroke } from "../colour.js";
import { h } from "../dom.js";
import { swatch } from "./drawing.js";
import { computed, isExpression, parseExpression, partsOf } from "./expression.js";
import { continued } from "./points.js";
/** @import { Curve } from "./points.js" */
/** @import { View } from "./toolbar.js" */

/**
 * @typedef {object} Line
 * @property {string} run
 * @property {string} label
 * @property {string} colour
 * @property {"solid" | "dash" | "dot" | "dashdot"} dash
 * @property {import("./points.js").Curve} curve
 * @property {boolean} [cut] whether it was pruned, so that its curve ends early
 * @property {string} [metric] in a chart of several metrics, its own
 * @property {boolean} [faint] whether it is only compared with the others
 *
 * @typedef {Pick<View, "logx" | "logy" | "band"> & Partial<Pick<View, "range">> & {x: View["x"] | "clock",
 *   span?: [number, number] | null}} Look `x`: of a clock, steps and x are seconds since the epoch; `span`: the first
 *   and last x, of all charts together
 *
 * @typedef {object} Place where a cursor stands
 * @property {number} step
 * @property {number} x on the x axis of the data
 * @property {string | null} run the run whose line is nearest to the pointer
 */

/**
 * @typedef {object} BoardRun
 * @property {string} id
 * @property {string} label
 * @property {import("../colour.js").Stroke} stroke
 * @property {boolean} [hidden]
 * @property {boolean} [faint] whether it is only compared with the others
 * @property {boolean} [cut] whether it was pruned
 * @property {string | null} [group] the key shared by runs that can be one line
 * @property {string[]} [members] of a group: its runs; `noun`: what they are
 * @property {"seeds" | "runs"} [noun]
 * @property {string[]} [metrics] metrics that the run is known to have
 * @property {string | null} [parent] the run that it was forked from
 * @property {boolean} [ended] whether it has no more points to come
 * @property {number} [attempt] the newest attempt: another one may go back in steps
 */

/**
 * Return a run as charts know it.
 *
 * @param {import("../types.js").RunView} run
 * @param {Pick<BoardRun, "label" | "stroke"> & Partial<BoardRun>} drawn how it is drawn
 * @returns {BoardRun}
 */
export const boardRun = (run, drawn) => ({
  id: run.id, parent: run.forked_from, attempt: run.attempt, ended: run.ended_at !== null,
  metrics: Object.keys(run.latest), ...drawn,
});

/**
 * Return a run's curve, continuing those of the runs that it was forked from.
 *
 * @param {(import("./feed.js").Feed["curves"] | undefined)[]} line curves of the run and its ancestors
 * @param {string} name of a metric, or an expression
 */
export function curveOf(line, name) {
  const of = (/** @type {string} */ one) =>
    line.map((curves) => curves?.get(one)).reduceRight((parent, own) => (own ? continued(parent, own) : parent));
  if (!line[0]) return undefined;
  if (!isExpression(name)) return line[0].has(name) ? of(name) : undefined;
  const found = computed(parseExpression(name), of);
  return found && {
    ...found,
    forkedAt: parseExpression(name).metrics.map((one) => of(one)?.forkedAt).find((step) => step !== undefined),
  };
}

/**
 * Return the first and last x of all curves.
 *
 * @param {number[][]} xs
 * @param {boolean} logarithmic
 * @returns {[number, number] | null}
 */
export function spanOf(xs, logarithmic) {
  let first = Infinity;
  let last = -Infinity;
  for (const x of xs) {
    if (!x.length) continue;
    // A logarithmic axis begins with the first positive value.
    first = Math.min(first, logarithmic ? (x.find((one) => one > 0) ?? Infinity) : x[0]);
    last = Math.max(last, x[x.length - 1]);
  }
  return first < last ? [first, last] : null;
}

/** Steps of the end of an axis that grows, as a share of its length. */
const STEPS = 32;

/**
 * Return a range with room at its end, up to a thirty-second of it: an axis that followed each point
 * would move all curves each time, also those without a new one.
 *
 * @param {[number, number] | null} span
 * @returns {[number, number] | null}
 */
export function roomy(span) {
  if (!span) return null;
  const [first, last] = span;
  const step = 2 ** Math.floor(Math.log2(last - first)) / STEPS;
  return [first, first + Math.ceil((last - first) / step - 1e-9) * step];
}

/**
 * @typedef {{lines: Line[], look: Look}} Drawn
 */

/** @param {Record<string, any>} a @param {Record<string, any>} b */
const same = (a, b) => Object.keys({ ...a, ...b }).every((key) => a[key] === b[key]);

/**
 * @param {Drawn | undefined} before
 * @param {Drawn} now curves are compared by identity: a feed replaces a curve that has new points
 */
export const alike = (before, now) => (
  before !== undefined && before.lines.length === now.lines.length
    && before.lines.every((line, i) => same(line, now.lines[i]))
    && same({ ...before.look, span: before.look.span?.join() }, { ...now.look, span: now.look.span?.join() })
);

/**
 * Return what has lines of its own: of each group one run, whose curves are the means of its members'.
 *
 * @param {BoardRun[]} runs
 * @param {"seeds" | "runs" | null} means whether groups have means, and what their runs are
 * @returns {BoardRun[]}
 */
export function gathered(runs, means) {
  if (!means) return runs;
  return [...Map.groupBy(runs, ({ id, group }) => group ?? id).values()].map((all) => {
    const [first] = all;
    if (!first.group) return first;
    return /** @type {BoardRun} */ ({
      ...first, label: first.group, noun: means, cut: false, members: all.map(({ id }) => id),
      metrics: all.flatMap(({ metrics = [] }) => metrics), ended: all.every(({ ended }) => ended),
      parent: all.every(({ parent }) => parent === first.parent) ? first.parent : null,
      attempt: all.reduce((sum, { attempt = 0 }) => sum + attempt, 0),
    });
  });
}

/** Return what a line of a group is. @param {BoardRun} run @param {Curve} curve */
function ofMembers({ members, noun }, { members: count = members?.length ?? 1, dropouts }) {
  if (!members) return "";
  return count > 1 ? `, ${count} ${noun}${dropouts ? `, ${dropouts}` : ""}` : ", one run";
}

/**
 * @param {string} name of a metric, an expression, or several of them
 * @param {BoardRun[]} runs those that have lines of their own
 * @param {(run: BoardRun, part: string) => import("./points.js").Curve | null | undefined} read
 * @returns {Line[]}
 */
export function linesOf(name, runs, read) {
  const parts = partsOf(name);
  const several = parts.length > 1;
  return parts.flatMap((part, i) => runs.flatMap((run) => {
    const curve = read(run, part);
    if (!curve) return [];
    const label = several ? (runs.length === 1 ? part : `${run.label} · ${part}`) : run.label;
    return {
      run: run.id, label: `${label}${ofMembers(run, curve)}`, cut: run.cut, faint: run.faint,
      ...strokeOf(run, i, runs.length, parts.length), ...(several && { metric: part }), curve,
    };
  }));
}

/** More metrics of one run than these are a family. */
const FAMILY = 4;

/** Return of each name the part that tells it from the others. @param {string[]} names */
export function ownParts(names) {
  const [first = ""] = names;
  let [from, to] = [0, 0];
  while (from < first.length && names.every((name) => name[from] === first[from])) from += 1;
  while (to < first.length - from && names.every((name) => name.at(-1 - to) === first.at(-1 - to))) to += 1;
  return names.map((name) => name.slice(from, name.length - to));
}

/** @param {Line[]} lines @param {string[] | null} values of a heat map: the lowest, one between, and the highest */
export function drawKey(lines, values) {
  const keys = keyOf(lines);
  if (!values && keys.length <= FAMILY) {
    return keys.map((one) => h("span", { key: one.label }, swatch(one), " ", one.label));
  }
  const parts = ownParts(keys.map(({ label }) => label));
  const labels = values ?? [parts[0], parts[parts.length >> 1], parts[parts.length - 1]];
  const ticks = labels.map((label) => ({ value: 0, label }));
  return scaleKey({ kind: "number", title: "", ordered: true, ticks, colour: String });
}

/** Return the key of a chart of several metrics: for one run colours, for several dashes. @param {Line[]} lines */
export function keyOf(lines) {
  const several = lines.some(({ run }) => run !== lines[0].run);
  return lines.filter(({ run, metric }) => metric && run === lines[0].run)
    .map(({ metric = "", colour, dash }) => ({ label: metric, colour: several ? "currentColor" : colour, dash }));
}

/**
 * Return the colour of a run's line: of a single run each metric has its own, of several each metric has its dash, in
 * turn.
 *
 * @param {BoardRun} run
 * @param {number} metric
 * @param {number} count of runs
 * @param {number} of so many metrics: a family, such as one of each layer, has ordered colours
 * @returns {Pick<Line, "colour" | "dash">}
 */
function strokeOf(run, metric, count, of) {
  if (count === 1 && of > FAMILY) return { colour: along(metric / (of - 1)), dash: "solid" };
  const own = run.stroke;
  if (metric === 0) return own;
  if (count > 1) return { colour: own.colour, dash: DASHES[(metric + DASHES.indexOf(own.dash)) % DASHES.length] };
  const others = Array.from({ length: 10 }, (_, i) => stroke(i)).filter(({ colour }) => colour !== own.colour);
  return others[(metric - 1) % others.length];
}
