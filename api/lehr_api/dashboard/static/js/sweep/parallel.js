/**
 * Parallel coordinates: one line per trial, one axis per parameter, the metric last.
 *
 * Drawn as SVG, because Plotly's version needs `unsafe-eval`.
 */

import { along } from "../colour.js";
import { fill, s } from "../dom.js";
import { fromWire, number, specValue } from "../format.js";
import { ENDED } from "../status.js";
import { axisOf } from "./axis.js";

/**
 * @typedef {import("../types.js").SweepDetail} SweepDetail
 * @typedef {import("../types.js").TrialView} TrialView
 */

const HEIGHT = 280;
const TOP = 28;
const BOTTOM = 14;
const SIDE = 70;

/** @param {TrialView} trial */
const result = (trial) => fromWire(trial.compared_value ?? trial.value);

/**
 * @param {HTMLElement} place
 * @param {SweepDetail} sweep
 */
export function drawParallel(place, sweep) {
  const width = Math.max(320, place.clientWidth);
  const axes = [
    ...sweep.parameters.map((path) => axisOf(path.split(".").slice(-2).join("."), (trial) => trial.parameters[path], sweep.trials, (v) => specValue(v, path))),
    axisOf(sweep.metric, result, sweep.trials, (v) => number(v)),
  ];
  const x = (/** @type {number} */ i) => SIDE + (i / Math.max(1, axes.length - 1)) * (width - 2 * SIDE);
  const y = (/** @type {number} */ share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  const results = sweep.trials.map(result).filter((v) => v !== null && Number.isFinite(v)).map(Number);
  const low = Math.min(...results);
  const span = Math.max(...results) - low || 1;
  const svg = s("svg", { class: "parallel", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": `${sweep.trials.length} trials over ${axes.map((axis) => axis.title).join(", ")}` });
  for (const trial of sweep.trials) {
    const points = axes.map((axis, i) => ({ at: axis.at(trial), i })).filter((point) => point.at !== null);
    if (points.length < 2) continue;
    const value = result(trial);
    const known = value !== null && Number.isFinite(value);
    const path = s("path", {
      d: points.map(({ at, i }, n) => `${n ? "L" : "M"}${x(i).toFixed(1)} ${y(/** @type {number} */ (at)).toFixed(1)}`).join(""),
      // Failed trials are red; trials without a value yet are grey.
      stroke: known ? along((value - low) / span) : ENDED.has(trial.run.state) ? "var(--bad)" : "var(--ink-2)",
      "stroke-dasharray": known ? null : "3 4",
      tabindex: "-1",
    });
    const link = s("a", { href: `/runs/${trial.run.id}`, "aria-label": trial.run.name }, path, s("title", {}, `${trial.run.name}: ${sweep.metric} ${number(value)}`));
    svg.append(link);
  }
  axes.forEach((axis, i) => {
    svg.append(s("line", { class: "axis", x1: x(i), x2: x(i), y1: y(0), y2: y(1) }));
    svg.append(s("text", { class: "title", x: x(i), y: 14, "text-anchor": i === 0 ? "start" : i === axes.length - 1 ? "end" : "middle" }, axis.title));
    const last = i === axes.length - 1;
    for (const tick of axis.ticks) svg.append(s("text", { x: x(i) + (last ? 7 : -7), y: y(tick.at) + 4, "text-anchor": last ? "start" : "end" }, tick.label));
  });
  fill(place, svg);
}
