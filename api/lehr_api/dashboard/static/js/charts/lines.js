/** The lines of a chart: one for each run and metric, continuing its ancestors, or one for each group of runs. */

import { along, DASHES, keyOf as scaleKey, stroke } from "../colour.js";
import { h } from "../dom.js";
import { integer } from "../format.js";
import { swatch } from "./drawing.js";
import { computed, isExpression, parseExpression, partsOf } from "./expression.js";
import { continued, xOfStep } from "./points.js";

/**
 * @typedef {object} BoardRun
 * @property {string} id
 * @property {string} label
 * @property {() => import("../colour.js").Stroke} stroke called for each drawing, because the theme may change
 * @property {boolean} [hidden]
 * @property {boolean} [faint] whether it is only compared with the others
 * @property {number | null} [flopsPerToken]
 * @property {boolean} [cut] whether it was pruned
 * @property {string | null} [group] the key shared by runs that differ only in their seed
 * @property {string[]} [metrics] metrics that the run is known to have
 * @property {string | null} [parent] the run that it was forked from
 * @property {boolean} [ended] whether it has no more points to come
 * @property {number} [attempt] the newest attempt: another one may go back in steps
 */

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
 * @typedef {import("./chart.js").Line} Line
 * @typedef {import("./chart.js").Look} Look
 * @typedef {{lines: Line[], look: Look}} Drawn
 */

const OF_LINE = /** @type {const} */ (["run", "label", "colour", "dash", "cut", "metric", "curve"]);
const OF_LOOK = /** @type {const} */ (["x", "logx", "logy", "band"]);

/**
 * @param {Drawn | undefined} before
 * @param {Drawn} now curves are compared by identity: a feed replaces a curve that has new points
 */
export function alike(before, now) {
  return (
    before !== undefined &&
    before.lines.length === now.lines.length &&
    before.lines.every((line, i) => OF_LINE.every((key) => line[key] === now.lines[i][key])) &&
    OF_LOOK.every((key) => before.look[key] === now.look[key]) &&
    before.look.span?.join() === now.look.span?.join()
  );
}

/** @typedef {import("./points.js").Curve} Curve */

/**
 * Return the members of each group, in the order of their first ones.
 *
 * @template T
 * @param {T[]} runs
 * @param {(run: T) => string} key
 * @returns {Map<string, T[]>}
 */
export function inGroups(runs, key) {
  /** @type {Map<string, T[]>} */
  const groups = new Map();
  for (const run of runs) groups.set(key(run), [...(groups.get(key(run)) ?? []), run]);
  return groups;
}

/** @param {Curve} curve @param {number} step @returns {number} NaN before its first point and after its last */
const valueAt = (curve, step) => xOfStep({ step: curve.step, x: curve.y }, step) ?? NaN;

/**
 * Return the mean of those curves that have a value, with minimum and maximum as the band.
 *
 * @param {Curve[]} curves each with points
 * @returns {Curve}
 */
export function meanCurve(curves) {
  const finest = curves.reduce((a, b) => (b.step.length > a.step.length ? b : a));
  const places = new Map(finest.step.map((step, i) => [step, finest.x[i]]));
  // Where the finest has none, before and after it, the points of the others.
  for (const { step, x } of curves) {
    step.forEach((one, i) => (one < finest.step[0] || one > (finest.step.at(-1) ?? -1)) && places.set(one, x[i]));
  }
  /** @type {Curve & {whole: boolean[]}} */
  const mean = { step: [], x: [], y: [], low: [], high: [], raw: null, superseded: [], goal: finest.goal, whole: [] };
  for (const step of [...places.keys()].sort((a, b) => a - b)) {
    const values = curves.map((curve) => valueAt(curve, step)).filter(Number.isFinite);
    if (!values.length) continue;
    mean.step.push(step);
    mean.x.push(places.get(step) ?? NaN);
    mean.y.push(values.reduce((a, b) => a + b, 0) / values.length);
    mean.low?.push(Math.min(...values));
    mean.high?.push(Math.max(...values));
    mean.whole.push(values.length === curves.length);
  }
  return mean;
}

/** Return which of these lines have no value at the last steps of the others, in words. @param {Line[]} group */
function dropouts(group) {
  const diverged = group.flatMap(({ curve }) => curve.step[curve.y.findLastIndex(Number.isFinite) + 1] ?? []);
  const whole = group.filter(({ curve }) => Number.isFinite(curve.y.at(-1)));
  const last = (/** @type {Line} */ { curve }) => curve.step[curve.step.length - 1];
  const ended = whole.filter((line) => line.ended).map(last).filter((step) => step < Math.max(...whole.map(last)));
  const words = (/** @type {number[]} */ steps, /** @type {string} */ what) => {
    const places = [...new Set([Math.min(...steps), Math.max(...steps)])].map(integer);
    return steps.length
      ? `, ${steps.length} ${what} at ${places.length > 1 ? "steps" : "step"} ${places.join(" to ")}`
      : "";
  };
  return words(diverged, "diverged") + words(ended, "ended");
}

/**
 * @param {Line[]} lines
 * @param {(line: Line) => string | null} groupOf
 * @param {string} [noun] what the runs of a group are
 * @returns {Line[]} one line per group, in the order of first members; lines without a group are unchanged
 */
export function bySeeds(lines, groupOf, noun = "seeds") {
  return [...inGroups(lines, (line) => groupOf(line) ?? line.run)].map(([key, all]) => {
    const group = all.filter(({ curve }) => curve.step.length);
    const [first = all[0]] = group;
    if (groupOf(all[0]) === null) return first;
    if (group.length < 2) return { ...first, label: noun === "seeds" ? first.label : `${key}, one run` };
    return {
      ...all[0], label: `${key}, mean of ${group.length} ${noun}${dropouts(group)}`, cut: false,
      members: all.map((line) => line.run), parts: group, curve: meanCurve(group.map((line) => line.curve))
    };
  });
}

/**
 * @param {string} name of a metric, an expression, or several of them
 * @param {BoardRun[]} runs
 * @param {(run: string, part: string) => import("./points.js").Curve | null | undefined} read
 * @param {"seeds" | "runs" | null} means whether runs of a group are one line, and what its runs are
 * @returns {{lines: Line[], drawnAs: Map<string, string>}} `drawnAs`: the run whose line stands for a member of a group
 */
export function linesOf(name, runs, read, means) {
  const parts = partsOf(name);
  const shown = runs.filter((run) => !run.hidden);
  /** @type {Map<string, string>} */
  const drawnAs = new Map();
  const lines = parts.flatMap((part, i) => {
    const several = parts.length > 1;
    /** @type {Line[]} */
    const own = [];
    for (const run of shown) {
      const curve = read(run.id, part);
      if (!curve) continue;
      own.push({
        run: run.id, label: several ? labelOf(run, part, shown.length) : run.label, cut: run.cut, ended: run.ended,
        faint: run.faint,
        ...strokeOf(run, i, shown.length, parts.length), ...(several && { metric: part }), curve,
      });
    }
    if (!means) return own;
    const groups = new Map(shown.map(({ id, group }) => [id, group && (several ? `${group} · ${part}` : group)]));
    const drawn = bySeeds(own, ({ run }) => groups.get(run) ?? null, means);
    for (const { run, members } of drawn) for (const one of members ?? [run]) drawnAs.set(one, run);
    return drawn;
  });
  return { lines, drawnAs };
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

/** @param {BoardRun} run @param {string} part @param {number} count of runs */
const labelOf = (run, part, count) => (count === 1 ? part : `${run.label} · ${part}`);

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
  const own = run.stroke();
  if (metric === 0) return own;
  if (count > 1) return { colour: own.colour, dash: DASHES[(metric + DASHES.indexOf(own.dash)) % DASHES.length] };
  const others = Array.from({ length: 10 }, (_, i) => stroke(i)).filter(({ colour }) => colour !== own.colour);
  return others[(metric - 1) % others.length];
}
