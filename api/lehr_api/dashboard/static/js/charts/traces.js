/** What a chart draws: a line for each run, its band, and the marks of its steps. */

import { faded } from "../colour.js";
import { integer } from "../format.js";
import { ink } from "./drawing.js";
import { ownParts } from "./lines.js";
import { xOfStep } from "./points.js";

/**
 * @typedef {import("./chart.js").Line} Line
 * @typedef {import("./chart.js").Look} Look
 * @typedef {object} Marks steps that something happened at
 * @property {{step: number, name: string, label: string}[]} stages
 * @property {number[]} checkpoints
 * @property {{step: number, label: string, cause?: string}[]} resumes `cause`: why the attempt before ended
 * @property {{step: number, label: string, cause?: string}[]} alerts `cause`: the usual one
 * @property {import("../types.js").ForecastView | null} [forecast] of the run's end
 */

/** The most checkpoints that have a tick each: more ticks would be one grey bar. */
const TICKS = 40;
const FEW_POINTS = 40;
/** How far from the end of the axis a forecast stands, whole: as a share of the axis. */
const INSIDE = 0.01;

/**
 * @typedef {object} Trace
 * @property {"lines" | "markers" | "lines+markers" | "cells"} mode
 * @property {number[]} x
 * @property {number[]} y a gap where it is not finite
 * @property {{width: number, color?: string, dash?: string}} [line]
 * @property {{symbol?: "circle" | "x" | "line-ns-open", size: number, color: string}} [marker]
 * @property {"tonexty"} [fill] fill the area between it and the trace before
 * @property {string} [fillcolor]
 * @property {string} [run] the run whose line it belongs to
 * @property {boolean} [near] whether it is seen only while its line is the nearest
 * @property {number} [row] of the cells, whose colours show `y`, from 0 to 1
 *
 * @typedef {object} Shape a line across the plot, at one x
 * @property {number} x0
 * @property {number} y1 its height, as a share of the plot's
 * @property {{width: number, color: string, dash?: string}} line
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
    return { mode: "cells", run, row, x: kept.map((i) => x[i] / unit), y: kept.map(share) };
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
  const { curve, colour, dash } = line;
  const scaled = (/** @type {number[]} */ x) => (unit === 1 ? x : x.map((v) => v / unit));
  const base = { mode: /** @type {const} */ ("lines") };
  const x = scaled(curve.x);
  const few = curve.step.filter((step) => step >= (curve.forkedAt ?? 0)).length < FEW_POINTS;
  /** @type {Trace[]} */
  const traces = [];
  const shown = curve.raw ?? curve;
  if (look.band && shown.low && shown.high && shown.low.some((v, i) => v < (shown.high ?? [])[i])) {
    const bandX = curve.raw ? scaled(curve.raw.x) : x;
    const part = { ...base, near, run: line.run, x: bandX, line: { width: 0 } };
    traces.push({ ...part, y: shown.low }, { ...part, y: shown.high, fill: "tonexty", fillcolor: faded(colour, 0.16) });
  }
  for (const old of curve.superseded) {
    traces.push({ ...base, x: scaled(old.x), y: old.y, line: { width: 1.25, color: ink().strong, dash: "dot" } });
  }
  if (curve.raw) {
    traces.push({ ...base, x: scaled(curve.raw.x), y: curve.raw.y, line: { width: 1, color: faded(colour, 0.35) } });
  }
  // The curve of a run that this one was forked from leads to it, lighter.
  const fork = curve.forkedAt === undefined ? 0 : curve.step.findIndex((step) => step >= (curve.forkedAt ?? 0));
  if (fork > 0) {
    traces.push({ ...base, x: x.slice(0, fork + 1), y: curve.y.slice(0, fork + 1), line: {
      width: 1.5, color: faded(colour, 0.6), dash: "dot",
    } });
  }
  const { whole } = curve;
  // A mean is thin where some of its runs have no value.
  if (whole?.includes(false)) {
    traces.push({ ...base, run: line.run, x, y: curve.y, line: { width: 0.75, color: colour, dash } });
  }
  traces.push({
    ...base,
    run: line.run,
    mode: few ? "lines+markers" : "lines",
    x: fork === 0 ? x : x.slice(fork),
    y: (whole ? curve.y.map((y, i) => (whole[i] ? y : NaN)) : curve.y).slice(fork),
    line: { width: 1.75, color: colour, dash },
    marker: { size: 4.5, color: colour },
  });
  if (line.cut && curve.step.length) {
    traces.push({ ...base, mode: "markers", x: x.slice(-1), y: curve.y.slice(-1), marker: {
      symbol: "line-ns-open", size: 12, color: colour,
    } });
  }
  const broken = curve.y.findIndex((value) => !Number.isFinite(value));
  if (broken > 0 && look.x !== "clock") {
    // A non-finite value has no position, but users look for it: mark its step.
    traces.push({ ...base, mode: "markers", x: [x[broken]], y: [curve.y[broken - 1]], marker: {
      symbol: "x", size: 8, color: ink().bad,
    } });
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
  const bar = (/** @type {number[]} */ y, /** @type {number} */ width, /** @type {number} */ depth) =>
    ({ mode: /** @type {const} */ ("lines"), x: [x, x], y, line: { width, color: faded(colour, depth) } });
  const middle = { mode: /** @type {const} */ ("markers"), x: [x], y: [value], marker: { size: 7, color: colour } };
  return [bar(sure, 2, 0.6), bar(likely, 7, 0.4), middle];
}

/** @param {Marks} marks @param {import("./points.js").Curve} curve @param {number} unit @returns {Shape[]} */
export function shapesOf(marks, curve, unit) {
  const colours = ink();
  /** @type {Shape[]} */
  const shapes = [];
  const at = (
    /** @type {number} */ step, /** @type {number} */ y1, /** @type {Shape["line"]} */ line, name = "",
  ) => {
    // The mark of a fork is one step before its first point: draw it at that point.
    const x = xOfStep(curve, step) ?? (step + 1 === curve.step[0] ? curve.x[0] : null);
    if (x === null) return;
    shapes.push({ x0: x / unit, y1, line, name });
  };
  for (const { step, name } of marks.stages) at(step, 1, { width: 1, color: colours.dim }, name);
  for (const step of marks.checkpoints.length > TICKS ? marks.checkpoints.slice(-1) : marks.checkpoints) {
    at(step, 0.05, { width: 1.5, color: colours.strong });
  }
  for (const { step } of marks.resumes) at(step, 1, { width: 1, color: colours.strong, dash: "dot" });
  for (const { step } of marks.alerts) at(step, 1, { width: 1.25, color: colours.bad, dash: "dash" });
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
    ...marks.stages.filter(near).map((one) => line(one)),
    ...marks.checkpoints.map((at) => ({ step: at, label: "checkpoint saved" })).filter(near).map((one) => line(one)),
    ...marks.resumes.filter(near).map((one) => line(one, ", after: ") + lost(curve, one.step)),
    ...marks.alerts.filter(near).map((one) => line(one, ". Usual cause: ")),
  ];
}
