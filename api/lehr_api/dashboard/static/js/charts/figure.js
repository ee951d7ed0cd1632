/** A figure that the server built, drawn in the page's own colours. */

import { stroke } from "../colour.js";
import { ink } from "./ink.js";
import { axis, CONFIG, layout, plotly } from "./plotly.js";

/**
 * Return the trace in the theme's colours, by its role.
 *
 * @param {any} trace
 */
function themed(trace) {
  const colours = ink();
  const role = trace.meta?.role;
  const own = role === "points" && typeof trace.meta.slot === "number" ? stroke(trace.meta.slot).colour : null;
  /** @type {Record<string, string>} */
  const byRole = { points: colours.accent, pending: colours.accent, best: colours.accent, diverged: colours.bad, gave_up: colours.dim, fit: colours.dim };
  const colour = own ?? byRole[role];
  if (!colour) return trace;
  const marker = trace.marker && {
    ...trace.marker,
    color: role === "best" ? "rgba(0,0,0,0)" : colour,
    line: { ...trace.marker.line, color: colour },
  };
  return {
    ...trace,
    ...(marker && { marker }),
    ...(trace.line && { line: { ...trace.line, color: colour } }),
    ...(trace.error_y && { error_y: { ...trace.error_y, color: colour } }),
    textfont: { size: 12, color: colours.ink },
    hoverlabel: { bgcolor: colours.bg, bordercolor: colours.strong, font: { color: colours.ink, size: 12, family: colours.sans } },
  };
}

/** @param {any} shape */
function themedShape(shape) {
  const colours = ink();
  const colour = shape.name === "diverged" ? colours.bad : colours.dim;
  return {
    ...shape,
    line: { ...shape.line, ...(shape.type === "line" && { color: colour }) },
    ...(shape.label && { label: { ...shape.label, font: { ...shape.label.font, color: colour } } }),
  };
}

/**
 * @param {HTMLElement} place
 * @param {{data: any[], layout: any}} figure
 * @param {(runId: string) => void} onRun called when a point of a run is clicked
 */
export async function drawFigure(place, figure, onRun) {
  const Plotly = await plotly();
  const shared = axis();
  const narrow = place.clientWidth < 560;
  const given = figure.layout;
  const look = {
    ...layout(),
    ...given,
    hovermode: given.hovermode ?? "closest",
    width: place.clientWidth,
    height: place.clientHeight,
    dragmode: false,
    margin: { ...given.margin, ...(narrow ? { l: 48, r: 8, b: 76 } : {}) },
    xaxis: { ...shared, ...given.xaxis, title: { ...shared.title, ...given.xaxis.title, standoff: narrow ? 20 : 10 }, tickangle: narrow ? -45 : 0, showline: true, fixedrange: true },
    yaxis: { ...shared, ...given.yaxis, title: { ...shared.title, ...given.yaxis.title }, fixedrange: true },
    ...(given.yaxis2 && { yaxis2: { ...shared, ...given.yaxis2, tickfont: { size: 11, color: ink().dim }, fixedrange: true } }),
    shapes: (given.shapes ?? []).map(themedShape),
    legend: { ...given.legend, font: { size: 12, color: ink().dim } },
  };
  // A sheet is narrower than the window, and the figure is not drawn again for it: it shrinks.
  place.style.setProperty("--aspect", String(look.width / look.height));
  const first = !place.classList.contains("js-plotly-plot");
  await Plotly.react(place, figure.data.map(themed), look, CONFIG);
  for (const svg of place.querySelectorAll(".main-svg")) svg.setAttribute("viewBox", `0 0 ${look.width} ${look.height}`);
  if (first) {
    /** @type {any} */ (place).on("plotly_click", (/** @type {any} */ event) => {
      const run = event.points?.[0]?.customdata;
      if (run) onRun(run);
    });
  }
}
