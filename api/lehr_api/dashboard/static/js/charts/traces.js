/** What a chart draws: a line for each run, its band, and the marks of its steps. */

import { integer } from "../format.js";
import { ownParts } from "./lines.js";
import { xOfStep } from "./points.js";
/** @import { Line, Look } from "./lines.js" */

/**
 * @typedef {object} Marks steps that something happened at
 * @property {{step: number, name: string, label: string}[]} stages
 * @property {{step: number, label: string}[]} checkpoints
 * @property {{step: number, label: string, cause?: string}[]} resumes `cause`: why the attempt before ended
 * @property {{step: number, label: string, cause?: string}[]} alerts `cause`: the usual one
 * @property {import("../types.js").ForecastView | null} [forecast] of the run's end
 */

/** The most checkpoints that have a tick each: more ticks would be one grey bar. */
const TICKS = 40;
const FEW_POINTS = 40;
/** Opacity of a line that others are only compared with. */
const FAINT = 0.55;
/** How far from the end of the axis a forecast stands, whole: as a share of the axis. */
const INSIDE = 0.01;

/**
 * @typedef {object} Trace
 * @property {"line" | "band" | "marks" | "cells"} kind
 * @property {number[]} x
 * @property {number[]} y a gap where it is not finite; of cells, whose colours show it, from 0 to 1
 * @property {number[]} [low] of a band, whose upper edge is `y`
 * @property {string} [colour]
 * @property {number} [opacity]
 * @property {number} [size] width of a line, diameter of a mark
 * @property {string} [dash]
 * @property {"cross" | "bar"} [symbol] of marks, which are dots without it
 * @property {string} [run] the run whose line it belongs to
 * @property {boolean} [near] whether it is seen only while its line is the nearest
 * @property {number} [row] of cells
 *
 * @typedef {object} Shape a line across the plot, at one x
 * @property {number} x0
 * @property {number} y1 its height, as a share of the plot's
 * @property {number} width
 * @property {string} colour
 * @property {string} [dash]
 * @property {string} [name] written beside it
 */

/** The most cells of a row in a heat map, and the most rows with a name. */
const [CELLS, ROWS] = [100, 12];

/** The lowest and the highest value of these lines. @param {Line[]} lines */
export function valuesOf(lines) {
  const all = lines.flatMap(({ curve }) => curve.y).filter(Number.isFinite).sort((a, b) => a - b);
  return [all[0], (all[0] + all[all.length - 1]) / 2, all[all.length - 1]];
}

/** Return the lines as rows of a heat map. @param {Line[]} lines @param {number} unit @returns {Trace[]} */
export function heatTraces(lines, unit) {
  const [low, , high] = valuesOf(lines);
  return lines.map(({ run, curve: { x, y } }, row) => {
    const kept = x.flatMap((_, i) => (i % Math.ceil(x.length / CELLS) ? [] : i));
    const share = (/** @type {number} */ i) => (y[i] - low) / (high - low || 1);
    return { kind: "cells", run, row, x: kept.map((i) => x[i] / unit), y: kept.map(share) };
  });
}

/** The axis of a heat map: what tells the lines apart. @param {Line[]} lines */
export function heatAxis(lines) {
  const ticks = ownParts(lines.map(({ label }) => label)).map((text, value) => ({ value, text: text.slice(-8) }));
  const every = Math.ceil(lines.length / ROWS);
  return { low: -0.5, high: lines.length - 0.5, log: false, ticks: ticks.filter(({ value }) => value % every === 0) };
}

/**
 * @param {Line} line
 * @param {Look} look
 * @param {number} unit what the x axis is divided by
 * @param {boolean} [near] whether its band is seen only while the line is the nearest: many bands cover the lines
 * @returns {Trace[]}
 */
export function tracesOf(line, look, unit, near = false) {
  const { curve, colour, dash, run, faint } = line;
  const scaled = (/** @type {number[]} */ x) => (unit === 1 ? x : x.map((v) => v / unit));
  const x = scaled(curve.x);
  /** @type {Trace[]} */
  const traces = [];
  const shown = curve.raw ?? curve;
  const { low, high } = shown;
  if (look.band && low && high && low.some((v, i) => v < high[i])) {
    traces.push({ kind: "band", near, run, x: scaled(shown.x), y: high, low, colour, opacity: 0.16 });
  }
  for (const old of curve.superseded) {
    traces.push({ kind: "line", x: scaled(old.x), y: old.y, colour: "var(--rule-strong)", size: 1.25, dash: "dot" });
  }
  if (curve.raw) traces.push({ kind: "line", x: scaled(shown.x), y: shown.y, colour, opacity: 0.35, size: 1 });
  // The curve of a run that this one was forked from leads to it, lighter.
  const fork = Math.max(0, curve.step.findIndex((step) => step >= (curve.forkedAt ?? 0)));
  if (fork) {
    const before = { x: x.slice(0, fork + 1), y: curve.y.slice(0, fork + 1) };
    traces.push({ kind: "line", ...before, colour, opacity: 0.6, size: 1.5, dash: "dot" });
  }
  const { whole } = curve;
  // A mean is thin where some of its runs have no value.
  if (whole?.includes(false)) traces.push({ kind: "line", run, x, y: curve.y, colour, size: 0.75, dash });
  const own = {
    run, colour, opacity: faint ? FAINT : 1, x: x.slice(fork),
    y: (whole ? curve.y.map((y, i) => (whole[i] ? y : NaN)) : curve.y).slice(fork),
  };
  traces.push({ kind: "line", ...own, size: 1.75, dash });
  if (own.x.length < FEW_POINTS) traces.push({ kind: "marks", ...own, size: 4.5 });
  if (line.cut && x.length) {
    traces.push({ kind: "marks", x: x.slice(-1), y: curve.y.slice(-1), symbol: "bar", size: 12, colour });
  }
  const broken = curve.y.findIndex((value) => !Number.isFinite(value));
  if (broken > 0 && look.x !== "clock") {
    // A non-finite value has no position, but users look for it: mark its step.
    const last = { x: [x[broken]], y: [curve.y[broken - 1]] };
    traces.push({ kind: "marks", ...last, symbol: "cross", size: 8, colour: "var(--bad)" });
  }
  return traces;
}

/**
 * Return where the run is expected to end: an error bar at the end of the axis. An axis up to the run's last step would
 * move this chart's cursor away from those of the others, and press the curve into a corner early in a run.
 *
 * @param {Marks["forecast"]} forecast
 * @param {string} colour of the run
 * @param {[number, number]} span the ends of the axis
 * @returns {Trace[]}
 */
export function forecastTraces(forecast, colour, [first, last]) {
  const { value, likely, sure } = forecast ?? {};
  if (typeof value !== "number" || !likely || !sure) return [];
  const x = last - (last - first) * INSIDE;
  return [
    { kind: "line", x: [x, x], y: sure, colour, opacity: 0.6, size: 2 },
    { kind: "line", x: [x, x], y: likely, colour, opacity: 0.4, size: 7 },
    { kind: "marks", x: [x], y: [value], colour, size: 7 },
  ];
}

/** @param {Marks} marks @param {import("./points.js").Curve} curve @param {number} unit @returns {Shape[]} */
export function shapesOf(marks, curve, unit) {
  /** @type {Shape[]} */
  const shapes = [];
  const add = (/** @type {number} */ step, /** @type {Omit<Shape, "x0">} */ shape) => {
    // The mark of a fork is one step before its first point: draw it at that point.
    const x = xOfStep(curve, step) ?? (step + 1 === curve.step[0] ? curve.x[0] : null);
    if (x !== null) shapes.push({ x0: x / unit, ...shape });
  };
  for (const { step, name } of marks.stages) add(step, { y1: 1, width: 1, colour: "var(--ink-2)", name });
  for (const { step } of marks.checkpoints.length > TICKS ? marks.checkpoints.slice(-1) : marks.checkpoints) {
    add(step, { y1: 0.05, width: 1.5, colour: "var(--rule-strong)" });
  }
  for (const { step } of marks.resumes) add(step, { y1: 1, width: 1, colour: "var(--rule-strong)", dash: "dot" });
  for (const { step } of marks.alerts) add(step, { y1: 1, width: 1.25, colour: "var(--bad)", dash: "dash" });
  return shapes;
}

/**
 * Describe how many steps were trained again after a resume; nothing if none were, or it is not known.
 *
 * @param {import("./points.js").Curve | undefined} curve
 * @param {number} step where it resumed
 */
function lost(curve, step) {
  const again = curve?.step.find((one) => one > step) ?? -1;
  const before = curve?.superseded.find((old) => old.step[0] > step && old.step[0] <= again);
  const steps = (before?.step.at(-1) ?? step) - step;
  return steps > 0 ? `; ${integer(steps)} ${steps === 1 ? "step" : "steps"} lost` : "";
}

/**
 * Return what happened within a distance of a step, in words.
 *
 * @param {Marks} marks
 * @param {number} step
 * @param {number} distance in steps
 * @param {import("./points.js").Curve} [curve] with the points that a resume replaced
 * @returns {string[]}
 */
export function marksNear(marks, step, distance, curve) {
  const near = (/** @type {{step: number}} */ { step: at }) => Math.abs(at - step) <= distance;
  const line = (/** @type {{step: number, label: string, cause?: string}} */ { step: at, label, cause }, lead = "") =>
    `step ${integer(at)}: ${label}${cause ? `${lead}${cause}` : ""}`;
  return [
    ...[...marks.stages, ...marks.checkpoints].filter(near).map((one) => line(one)),
    ...marks.resumes.filter(near).map((one) => line(one, ", after: ") + lost(curve, one.step)),
    ...marks.alerts.filter(near).map((one) => line(one, ". Usual cause: ")),
  ];
}
