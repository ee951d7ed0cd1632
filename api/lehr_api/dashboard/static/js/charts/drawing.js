/**
 * Draw the figure of a chart as SVG.
 *
 * Curves are downsampled by the server, so a chart has a few hundred points a line: a path is drawn in
 * well under a millisecond, and can be printed as it is.
 */

import { along } from "../colour.js";
import { s } from "../dom.js";
import { fromWire } from "../format.js";
import { scaleOf } from "./axes.js";
/** @import { Axis } from "./axes.js" */
/** @import { Shape, Trace } from "./traces.js" */
/** @import { Chart } from "./chart.js" */

/**
 * @typedef {object} Figure
 * @property {number} width
 * @property {number} height
 * @property {Axis} x
 * @property {Axis} y
 * @property {Trace[]} traces
 * @property {Shape[]} shapes
 *
 * @typedef {object} Area the part of a figure that has the lines
 * @property {number} left
 * @property {number} top
 * @property {number} width
 * @property {number} height
 */

const MARGIN = { left: 58, right: 22, top: 8, bottom: 24 };
/** @type {Record<string, string>} */
export const DASHES = { dash: "8 4", dot: "2 3", dashdot: "8 3 2 3" };
/** Lines end so far outside of the plot at the latest: browsers draw huge coordinates wrongly. */
const FAR = 10_000;

/** @param {{width: number, height: number}} figure @returns {Area} */
export const areaOf = ({ width, height }) => ({
  left: MARGIN.left,
  top: MARGIN.top,
  width: Math.max(1, width - MARGIN.left - MARGIN.right),
  height: Math.max(1, height - MARGIN.top - MARGIN.bottom),
});

/**
 * Return the path through these points, with a gap where one is missing.
 *
 * @param {number[]} x pixels
 * @param {number[]} y pixels
 */
export function path(x, y) {
  let found = "";
  let pen = false;
  for (let i = 0; i < x.length; i += 1) {
    if (!Number.isFinite(x[i]) || !Number.isFinite(y[i])) {
      pen = false;
      continue;
    }
    found += `${pen ? "L" : "M"}${x[i].toFixed(1)} ${Math.max(-FAR, Math.min(FAR, y[i])).toFixed(1)}`;
    pen = true;
  }
  return found;
}

/**
 * Return the outlines of the areas between two lines; gaps divide them.
 *
 * @param {number[]} x
 * @param {number[]} low
 * @param {number[]} high
 */
export function bandPath(x, low, high) {
  let found = "";
  let first = 0;
  for (let i = 0; i <= x.length; i += 1) {
    if (i < x.length && [x[i], low[i], high[i]].every(Number.isFinite)) continue;
    if (i - first > 1) {
      const part = (/** @type {number[]} */ values) => values.slice(first, i);
      found += `${path(part(x), part(low))}${path(part(x).toReversed(), part(high).toReversed()).replace("M", "L")}Z`;
    }
    first = i + 1;
  }
  return found;
}

/**
 * Return the path of a mark.
 *
 * @param {number} x pixels
 * @param {number} y pixels
 * @param {Pick<Trace, "symbol" | "size">} mark
 * @param {number} width where the axis ends
 */
export function symbol(x, y, { symbol: kind, size = 0 }, width) {
  const half = size / 2;
  // A cross or a dot at an end of the axis is whole.
  const edge = kind === "cross" ? half + 1 : kind === "bar" ? 0 : half;
  const middle = x < 0 || x > width ? x : Math.max(edge, Math.min(x, width - edge));
  const at = (/** @type {number} */ dx, /** @type {number} */ dy) =>
    `${(middle + dx).toFixed(1)} ${(y + dy).toFixed(1)}`;
  if (kind === "cross") return `M${at(-half, -half)}L${at(half, half)}M${at(-half, half)}L${at(half, -half)}`;
  if (kind === "bar") return `M${at(0, -half)}L${at(0, half)}`;
  // A line without length, whose round ends are a dot.
  return `M${at(0, 0)}h0`;
}

/** @param {Trace} trace @param {(x: number) => number} px @param {(y: number) => number} py @param {number} width */
function drawTrace(trace, px, py, width) {
  const { kind, x, y, low = [], colour, opacity, size, dash = "", symbol: sign, run, near, row = 0 } = trace;
  const xs = x.map(px);
  if (kind === "cells") {
    const [top, height] = [py(row + 0.5), py(row - 0.5) - py(row + 0.5)];
    return s("g", { "shape-rendering": "crispEdges" }, xs.map((at, i) => Number.isFinite(y[i]) && s("rect", {
      x: at, y: top, width: Math.max(1, (xs[i + 1] ?? width) - at), height, fill: along(y[i]),
    })));
  }
  const ys = y.map(py);
  const of = { class: `trace ${kind}${near ? " if-near" : ""}`, "data-run": run };
  if (kind === "band") {
    return s("path", { ...of, d: bandPath(xs, low.map(py), ys), fill: colour, "fill-opacity": opacity });
  }
  const drawn = { ...of, fill: "none", stroke: colour, "stroke-opacity": opacity };
  if (kind === "line") {
    return s("path", {
      ...drawn, d: path(xs, ys), "stroke-width": size, "stroke-linejoin": "round", "stroke-dasharray": DASHES[dash],
    });
  }
  const there = (/** @type {number} */ at, /** @type {number} */ i) => Number.isFinite(at) && Number.isFinite(ys[i]);
  const d = xs.map((at, i) => (there(at, i) ? symbol(at, ys[i], trace, width) : "")).join("");
  return s("path", { ...drawn, d, "stroke-width": sign ? 2 : size, "stroke-linecap": "round" });
}

/** @param {Figure} figure @returns {SVGElement} */
export function drawing(figure) {
  const { width, height, x, y, traces, shapes } = figure;
  const area = areaOf(figure);
  const px = scaleOf(x, area.width).pixel;
  const py = scaleOf(y, area.height, true).pixel;
  const text = (/** @type {string | undefined} */ words, /** @type {object} */ props) =>
    s("text", { fill: "var(--ink-2)", "font-size": 11, "font-family": "var(--sans)", ...props }, words);
  const rule = (
    /** @type {number} */ x1, /** @type {number} */ x2, /** @type {number} */ y1, /** @type {number} */ y2,
  ) => s("line", { x1, x2, y1, y2, stroke: "var(--grid)" });
  const right = area.left + area.width;
  const bottom = area.top + area.height;
  const columns = x.ticks.map(({ value, text: words }) => ({ at: Math.round(area.left + px(value)) + 0.5, words }));
  const rows = y.ticks.map(({ value, text: words }) => ({ at: Math.round(area.top + py(value)) + 0.5, words }));
  return s(
    "svg",
    { class: "chart-svg", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    s("g", { class: "grid" }, columns.map(({ at }) => rule(at, at, area.top, bottom)), rows.map(
      ({ at }) => rule(area.left, right, at, at)
    )),
    columns.map(({ at, words }) => text(words, { class: "xtick", x: at, y: bottom + 15, "text-anchor": "middle" })),
    rows.map(({ at, words }) => text(words, { class: "ytick", x: area.left - 6, y: at + 4, "text-anchor": "end" })),
    s(
      "svg",
      { class: "lines", x: area.left, y: area.top, width: area.width, height: area.height, overflow: "hidden" },
      shapes.map(({ x0, y1, width: thick, colour, dash = "" }) => s("line", {
        class: "mark", x1: px(x0).toFixed(1), x2: px(x0).toFixed(1), y1: area.height,
        y2: (area.height * (1 - y1)).toFixed(1), stroke: colour, "stroke-width": thick,
        "stroke-dasharray": DASHES[dash],
      })),
      shapes.filter(({ name }) => name).map(({ x0, name }) => text(name, {
        class: "mark-name", x: (px(x0) + 4).toFixed(1), y: 10,
      })),
      traces.map((trace) => drawTrace(trace, px, py, area.width)),
    ),
  );
}

/**
 * Return a figure as the text of an SVG file, with its title and the page's ground.
 *
 * @param {Figure} figure
 * @param {string} title
 */
export function fileOf(figure, title) {
  const head = 26;
  const drawn = drawing(figure);
  drawn.setAttribute("y", String(head));
  const whole = s(
    "svg",
    { width: figure.width, height: figure.height + head, viewBox: `0 0 ${figure.width} ${figure.height + head}` },
    s("rect", { width: "100%", height: "100%", fill: "var(--bg)" }),
    s(
      "text", { x: 12, y: 19, "font-size": 14, "font-weight": 600, "font-family": "var(--sans)", fill: "var(--ink)" },
      title,
    ),
    drawn,
  );
  // Other programs know neither the page's variables nor its theme.
  document.body.append(whole);
  for (const one of whole.querySelectorAll("*")) {
    for (const name of ["fill", "stroke", "font-family"].filter((attribute) => one.hasAttribute(attribute))) {
      one.setAttribute(name, getComputedStyle(one).getPropertyValue(name));
    }
  }
  whole.remove();
  return new XMLSerializer().serializeToString(whole);
}

/** @param {{colour: string, dash: import("./lines.js").Line["dash"]}} stroke */
export function swatch({ colour, dash }) {
  return s(
    "svg",
    { class: "swatch", viewBox: "0 0 18 8", width: "18", height: "8", "aria-hidden": "true" },
    s("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: colour, "stroke-dasharray": DASHES[dash] }),
  );
}

const WIDTH = 84;
const HEIGHT = 20;
const PAD = 2;

/**
 * @param {import("../types.js").WireNumber[]} wire
 * @param {string} label for screen readers
 * @returns {SVGElement | null} null for fewer than two values
 */
export function sparkline(wire, label) {
  const values = wire.map(fromWire);
  const finite = /** @type {number[]} */ (values.filter((v) => v !== null && Number.isFinite(v)));
  if (values.length < 2 || finite.length < 2) return null;
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (/** @type {number} */ i) => PAD + (i / (values.length - 1)) * (WIDTH - 2 * PAD);
  const y = (/** @type {number} */ v) => HEIGHT - PAD - ((v - low) / span) * (HEIGHT - 2 * PAD);

  const xs = values.map((_, i) => x(i));
  const ys = values.map((v) => (v === null ? NaN : y(v)));
  const last = ys.findLastIndex(Number.isFinite);
  const svg = s(
    "svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    s("path", { d: path(xs, ys) }),
  );
  const [cx, cy] = [xs[last], ys[last]];
  // A cross marks a last value that is not finite.
  svg.append(last === ys.length - 1
    ? s("circle", { class: "last", cx: cx.toFixed(1), cy: cy.toFixed(1), r: "2" })
    : s("path", { class: "broken", d: `M${cx - 3} ${cy - 3}l6 6m0-6l-6 6` }));
  return svg;
}

/** How many milliseconds of a frame go to charts at most, unless one alone takes more. */
const FRAME_MS = 8;

/**
 * Draws charts in the next frames, the nearest to the middle of the window first, and knows their sizes: to measure one
 * after another was drawn would lay out the page for each.
 */
export class Frames {
  /** @param {(chart: Chart) => void} draw @param {(chart: Chart) => void} onSize */
  constructor(draw, onSize) {
    this.draw = draw;
    /** @type {Set<Chart>} */
    this.waiting = new Set();
    this.asked = 0;
    /** By plot. @type {WeakMap<Element, Chart>} */
    this.charts = new WeakMap();
    this.sizes = new ResizeObserver((entries) => {
      for (const { target, contentRect: { width, height } } of entries) {
        const chart = /** @type {Chart} */ (this.charts.get(target));
        chart.size = width > 0 ? { width, height } : null;
        onSize(chart);
      }
    });
  }

  /** @param {Chart} chart */
  watch(chart) {
    this.charts.set(chart.plot, chart);
    this.sizes.observe(chart.plot);
  }

  /** @param {Chart[]} charts */
  add(charts) {
    for (const chart of charts) this.waiting.add(chart);
    if (charts.length) this.asked ||= requestAnimationFrame(() => this.#some());
  }

  #some() {
    this.asked = 0;
    const [end, middle] = [performance.now() + FRAME_MS, scrollY + innerHeight / 2];
    const away = (/** @type {Chart} */ { top }) => Math.abs(top - middle);
    for (const chart of [...this.waiting].sort((a, b) => away(a) - away(b))) {
      this.waiting.delete(chart);
      this.draw(chart);
      if (performance.now() > end) break;
    }
    this.add([...this.waiting]);
  }

  destroy() {
    cancelAnimationFrame(this.asked);
    this.sizes.disconnect();
  }
}
