/** One chart: title, values at the cursor, plot. */

import { faded } from "../colour.js";
import { h } from "../dom.js";
import { integer, metric, scientific, si } from "../format.js";
import { axis, CONFIG, ink, layout, plotly } from "./plotly.js";
import { indexAt, reaches, xOfStep } from "./points.js";
import { steady, timeUnit } from "./scale.js";

/**
 * @typedef {object} Line
 * @property {string} run
 * @property {string} label
 * @property {string} colour
 * @property {"solid" | "dash"} dash
 * @property {import("./points.js").Curve} curve
 * @property {boolean} [cut] whether it was pruned, so that its curve ends early
 *
 * @typedef {object} Marks steps that something happened at
 * @property {number[]} checkpoints
 * @property {{step: number, label: string}[]} resumes
 * @property {{step: number, label: string}[]} schedule where the learning rate schedule changes
 * @property {{step: number, label: string}[]} alerts
 *
 * @typedef {object} Look
 * @property {"step" | "tokens" | "time" | "flops"} x
 * @property {boolean} logx
 * @property {boolean} logy
 * @property {boolean} band
 */

const MARGIN = { l: 58, r: 10, t: 8, b: 24 };
const READINGS = 8;

/**
 * Return the number format and unit of the y axis where Plotly's default differs from `metric`.
 *
 * @param {string} name
 */
function ticks(name) {
  if (name.endsWith("_bytes")) return { tickformat: "~s", ticksuffix: "B" };
  if (name === "mfu" || name.endsWith("_share") || name.endsWith("acc")) return { tickformat: "~p" };
  if (name.endsWith("per_s")) return { tickformat: "~s" };
  // With SI prefixes (2.15ms, 1.2s), because times range from microseconds to minutes.
  return name.endsWith("_s") ? { tickformat: "~s", ticksuffix: "s" } : {};
}

export class Chart {
  /**
   * @param {string} name
   * @param {{onHover: (step: number | null, chart: Chart) => void,
   *   onZoom: (range: [number, number | null] | null) => void,
   *   onPin: (() => void) | null}} hooks
   */
  constructor(name, hooks) {
    this.name = name;
    this.hooks = hooks;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Look} */
    this.look = { x: "step", logx: false, logy: false, band: true };
    this.scale = 1;
    this.drawn = false;
    this.drawing = false;
    /** @type {{lines: Line[], look: Look, marks: Marks | null} | null} */
    this.wanted = null;
    this.visible = false;
    this.plot = h("div.plot", { role: "img", "aria-label": name });
    this.cursor = h("div.cursor");
    this.read = h("span.read");
    this.pinButton = hooks.onPin && h("button.pin", { type: "button", "aria-label": `Pin ${name} to the top`, onclick: hooks.onPin }, "☆");
    this.element = h("figure.chart", { "data-metric": name }, h("figcaption.chart-head", {}, h("h3", {}, name), this.pinButton, this.read), this.plot);
    this.plot.append(h("div.chart-empty", {}, "…"));
    this.plot.addEventListener("pointermove", (event) => this.#hover(event));
    this.plot.addEventListener("pointerleave", () => hooks.onHover(null, this));
  }

  /**
   * @param {Line[]} lines
   * @param {Look} look
   * @param {Marks | null} marks
   */
  async draw(lines, look, marks) {
    this.wanted = { lines, look, marks };
    // Draw once at a time. Of the requests that arrive in the meantime, draw the newest afterwards.
    if (this.drawing) return;
    this.drawing = true;
    try {
      const Plotly = await plotly();
      while (this.wanted) {
        const next = this.wanted;
        this.wanted = null;
        await this.#draw(Plotly, next.lines, next.look, next.marks);
      }
    } finally {
      this.drawing = false;
    }
  }

  /**
   * @param {any} Plotly
   * @param {Line[]} lines
   * @param {Look} look
   * @param {Marks | null} marks
   */
  async #draw(Plotly, lines, look, marks) {
    this.lines = lines;
    this.look = look;
    if (!this.element.isConnected) return;
    if (!lines.some((line) => line.curve.step.length)) {
      if (this.drawn) Plotly.purge(this.plot);
      this.drawn = false;
      this.plot.replaceChildren(h("div.chart-empty", {}, "no points here"));
      this.reading(null);
      return;
    }
    const longest = Math.max(...lines.map((line) => line.curve.x.at(-1) ?? 0));
    const [unit, suffix] = look.x === "time" ? timeUnit(longest) : [1, ""];
    this.scale = unit;
    const traces = lines.flatMap((line) => this.#traces(line));
    const width = this.plot.clientWidth;
    const shared = axis();
    const nticks = Math.max(4, Math.floor(width / 75));
    const first = Math.min(...lines.map((line) => line.curve.x[0] ?? Infinity));
    // A tick between two steps would be labelled with one of them.
    const whole = look.x === "step" && !look.logx && longest - first < nticks;
    const figure = {
      ...layout(),
      margin: MARGIN,
      width,
      height: this.plot.clientHeight,
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
      xaxis: {
        ...shared,
        type: look.logx ? "log" : "linear",
        nticks,
        ...(whole && { tick0: 0, dtick: 1 }),
        tickformat: look.x === "flops" ? "~e" : look.logx || look.x === "tokens" ? "~s" : look.x === "step" ? ",~d" : undefined,
        ticksuffix: suffix,
      },
      yaxis: {
        ...shared,
        type: look.logy ? "log" : "linear",
        fixedrange: true,
        nticks: 5,
        ...ticks(this.name),
        ...steady(traces, look.logy),
      },
      shapes: marks ? this.#shapes(marks) : [],
    };
    if (!this.drawn) this.plot.replaceChildren();
    await Plotly.react(this.plot, traces, figure, CONFIG);
    if (!this.drawn) {
      this.drawn = true;
      /** @type {any} */ (this.plot).on("plotly_doubleclick", () => this.hooks.onZoom(null));
      /** @type {any} */ (this.plot).on("plotly_relayout", (/** @type {any} */ change) => this.#zoomed(change));
      this.plot.append(this.cursor);
    }
    this.reading(null);
  }

  /** @param {Line} line */
  #traces(line) {
    const { curve, colour, dash } = line;
    const scaled = (/** @type {number[]} */ x) => (this.scale === 1 ? x : x.map((v) => v / this.scale));
    const base = { type: "scatter", mode: "lines", hoverinfo: "skip" };
    const x = scaled(curve.x);
    const few = curve.step.length < 40;
    const traces = [];
    const shown = curve.raw ?? curve;
    if (this.look.band && shown.low && shown.high && shown.low.some((v, i) => v < (shown.high ?? [])[i])) {
      const bandX = curve.raw ? scaled(curve.raw.x) : x;
      traces.push({ ...base, x: bandX, y: shown.low, line: { width: 0 } });
      traces.push({ ...base, x: bandX, y: shown.high, line: { width: 0 }, fill: "tonexty", fillcolor: faded(colour, 0.16) });
    }
    for (const old of curve.superseded) {
      traces.push({ ...base, x: scaled(old.x), y: old.y, line: { width: 1.25, color: ink().strong, dash: "dot" } });
    }
    if (curve.raw) {
      traces.push({ ...base, x: scaled(curve.raw.x), y: curve.raw.y, line: { width: 1, color: faded(colour, 0.35) } });
    }
    traces.push({
      ...base,
      mode: few ? "lines+markers" : "lines",
      x,
      y: curve.y,
      connectgaps: false,
      line: { width: 1.75, color: colour, dash },
      marker: { size: 4.5, color: colour },
    });
    if (line.cut && curve.step.length) {
      traces.push({ ...base, mode: "markers", x: x.slice(-1), y: curve.y.slice(-1), marker: { symbol: "line-ns-open", size: 12, color: colour, line: { width: 2, color: colour } } });
    }
    const broken = curve.y.findIndex((value) => !Number.isFinite(value));
    if (broken > 0) {
      // A non-finite value has no position, but users look for it: mark its step.
      traces.push({
        ...base,
        mode: "markers",
        x: [x[broken]],
        y: [curve.y[broken - 1]],
        marker: { symbol: "x", size: 8, color: ink().bad },
      });
    }
    return traces;
  }

  /** @param {Marks} marks */
  #shapes(marks) {
    const curve = this.lines[0].curve;
    const colours = ink();
    /** @type {any[]} */
    const shapes = [];
    const at = (/** @type {number} */ step, /** @type {number} */ y1, /** @type {object} */ line) => {
      // The mark of a fork is one step before its first point: draw it at that point.
      const x = xOfStep(curve, step) ?? (step + 1 === curve.step[0] ? curve.x[0] : null);
      if (x === null) return;
      const scaled = x / this.scale;
      shapes.push({ type: "line", xref: "x", yref: "paper", x0: scaled, x1: scaled, y0: 0, y1, line, layer: "below" });
    };
    for (const step of marks.checkpoints) at(step, 0.05, { width: 1.5, color: colours.strong });
    for (const { step } of marks.resumes) at(step, 1, { width: 1, color: colours.strong, dash: "dot" });
    for (const { step } of marks.schedule) at(step, 1, { width: 1, color: colours.accent, dash: "dashdot" });
    for (const { step } of marks.alerts) at(step, 1, { width: 1.25, color: colours.bad, dash: "dash" });
    return shapes;
  }

  /** @returns {any} Plotly's x axis as drawn, which maps between pixels and data */
  get #axis() {
    return this.drawn ? /** @type {any} */ (this.plot)._fullLayout.xaxis : null;
  }

  /** @param {PointerEvent} event */
  #hover(event) {
    const axis_ = this.#axis;
    if (!axis_) return;
    const px = event.clientX - this.plot.getBoundingClientRect().left - axis_._offset;
    if (px < 0 || px > axis_._length) {
      this.hooks.onHover(null, this);
      return;
    }
    const x = axis_.p2d(px) * this.scale;
    // Take the step of the nearest point of any curve.
    let nearest = null;
    let distance = Infinity;
    for (const { curve } of this.lines) {
      if (!curve.step.length) continue;
      const i = indexAt(curve.x, x);
      for (const j of [i, i + 1]) {
        if (j < curve.x.length && Math.abs(curve.x[j] - x) < distance) {
          distance = Math.abs(curve.x[j] - x);
          nearest = curve.step[j];
        }
      }
    }
    this.hooks.onHover(nearest, this);
  }

  /** @param {any} change */
  #zoomed(change) {
    if (change["xaxis.range[0]"] === undefined) return;
    const log = this.look.logx;
    const data = (/** @type {number} */ v) => (log ? 10 ** v : v) * this.scale;
    const from = data(change["xaxis.range[0]"]);
    const to = data(change["xaxis.range[1]"]);
    let first = Infinity;
    let last = -Infinity;
    let end = -Infinity;
    for (const { curve } of this.lines) {
      end = Math.max(end, curve.step.at(-1) ?? -Infinity);
      curve.x.forEach((x, i) => {
        if (x < from || x > to) return;
        first = Math.min(first, curve.step[i]);
        last = Math.max(last, curve.step[i]);
      });
    }
    // The zoom is a range of steps for all charts, so reset Plotly's own zoom of this chart.
    /** @type {any} */ (globalThis).Plotly.relayout(this.plot, { "xaxis.autorange": true });
    if (first < last) this.hooks.onZoom([first, last >= end ? null : last]);
  }

  /**
   * Show the values of the curves at a step; null for the newest.
   *
   * @param {number | null} step
   */
  reading(step) {
    const found = this.lines.filter((line) => line.curve.step.length);
    this.cursor.classList.toggle("on", step !== null);
    if (!found.length) {
      this.read.replaceChildren();
      return;
    }
    const at = (/** @type {Line} */ line) => (step === null ? line.curve.step.length - 1 : indexAt(line.curve.step, step));
    if (step !== null && this.drawn) {
      const x = xOfStep(found[0].curve, step) ?? found[0].curve.x[at(found[0])];
      const axis_ = this.#axis;
      this.cursor.style.transform = `translateX(${Math.round(axis_._offset + axis_.d2p(x / this.scale))}px)`;
    }
    if (found.length === 1) {
      const { curve } = found[0];
      const i = at(found[0]);
      const where = this.look.x === "flops" ? `${scientific(curve.x[i])} FLOPs` : this.look.x === "tokens" ? si(curve.x[i], "tokens") : `step ${integer(curve.step[i])}`;
      this.read.replaceChildren(h("b", {}, metric(this.name, curve.y[i])), step === null ? "" : ` ${where}`);
      this.plot.setAttribute("aria-label", `${this.name}: ${metric(this.name, curve.y[i])} at step ${integer(curve.step[i])}`);
      return;
    }
    const shown = found
      .filter((line) => step === null || reaches(line.curve, step))
      .map((line) => ({ line, value: line.curve.y[at(line)] }))
      .filter(({ value }) => Number.isFinite(value))
      .sort((a, b) => a.value - b.value);
    this.read.textContent = shown.length
      ? `${step === null ? "" : `step ${integer(step)} · `}${metric(this.name, shown[0].value)} to ${metric(this.name, shown.at(-1)?.value)}`
      : "";
    this.plot.setAttribute("aria-label", `${this.name} of ${found.length} runs: ${this.read.textContent}`);
  }

  /** Return the values of all runs at a step, for the list beside the pointer. */
  values(/** @type {number} */ step) {
    return this.lines
      .filter((line) => reaches(line.curve, step))
      .map((line) => ({ line, value: line.curve.y[indexAt(line.curve.step, step)] }))
      .sort((a, b) => (Number.isNaN(a.value) ? 1 : Number.isNaN(b.value) ? -1 : a.value - b.value))
      .slice(0, READINGS);
  }

  /** @param {boolean} pinned */
  setPinned(pinned) {
    this.pinButton?.setAttribute("aria-pressed", String(pinned));
    if (this.pinButton) this.pinButton.textContent = pinned ? "★" : "☆";
  }

  destroy() {
    if (this.drawn) /** @type {any} */ (globalThis).Plotly.purge(this.plot);
    this.element.remove();
  }
}
