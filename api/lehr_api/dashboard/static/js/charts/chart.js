/** One chart: title, values at the cursor, plot. */

import { fill, h } from "../dom.js";
import { integer, metric, NONE, scientific, si } from "../format.js";
import { axis, CONFIG, layout, plotly } from "./plotly.js";
import { indexAt, reaches } from "./points.js";
import { menuOf } from "./menu.js";
import { logAxis, ticks, yRange } from "./axes.js";
import { timeUnit } from "./scale.js";
import { mainOf, marksNear, shapesOf, tracesOf } from "./traces.js";

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
 * @property {[number, number] | null} [span] the first and last x, of all charts together
 *
 * @typedef {object} Place where a cursor stands
 * @property {number} step
 * @property {number} x on the x axis of the data
 * @property {string | null} run the run whose line is nearest to the pointer
 */

const MARGIN = { l: 58, r: 22, t: 8, b: 24 };
/** How near, in pixels, a mark must be to the cursor for its words to show. */
const MARK_PX = 5;
/** A pointer that has moved less than this was a click. */
const CLICK_PX = 4;

export class Chart {
  /**
   * @param {string} name
   * @param {{onHover: (place: Place | null, chart: Chart) => void,
   *   onHold: (place: Place, chart: Chart) => void,
   *   onZoom: (range: [number, number | null] | null) => void,
   *   onOwn: (own: import("./menu.js").Own) => void,
   *   onPin: (() => void) | null}} hooks
   */
  constructor(name, hooks) {
    this.name = name;
    this.hooks = hooks;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Look} */
    this.look = { x: "step", logx: false, logy: false, band: true, span: null };
    this.scale = 1;
    this.drawn = false;
    this.drawing = false;
    this.draws = 0;
    /** @type {{lines: Line[], look: Look, marks: Marks | null} | null} */
    this.wanted = null;
    this.visible = false;
    /** @type {Place | null} */
    this.at = null;
    /** @type {Marks | null} */
    this.marks = null;
    this.plot = h("div.plot", { role: "img", tabindex: "0", "aria-label": name });
    this.cursor = h("div.cursor");
    this.dots = h("div.cursor-dots", { "aria-hidden": "true" });
    this.read = h("span.read");
    this.pinButton = hooks.onPin && h("button.pin", { type: "button", "aria-label": `Pin ${name} to the top`, onclick: hooks.onPin }, "☆");
    /** What this chart has for itself. @type {import("./menu.js").Own} */
    this.own = {};
    this.outside = h("button.outside", { type: "button", hidden: true, onclick: () => hooks.onOwn({ ...this.own, all: true }) });
    this.tools = h("span.chart-tools");
    this.element = h("figure.chart", { "data-metric": name }, h("figcaption.chart-head", {}, h("h3", { title: name }, name), this.pinButton, this.outside, this.read, this.tools), this.plot);
    this.setOwn({});
    this.plot.append(h("div.chart-empty", {}, "…"));
    this.plot.addEventListener("pointermove", (event) => hooks.onHover(this.#placeOf(event), this));
    this.plot.addEventListener("pointerleave", () => hooks.onHover(null, this));
    this.plot.addEventListener("keydown", (event) => this.#walk(event));
    /** @type {PointerEvent | null} */
    let down = null;
    this.plot.addEventListener("pointerdown", (event) => {
      down = event;
    }, true);
    // Plotly takes the pointer for its zoom, so the end of a click is seen at the window.
    this.ended = new AbortController();
    addEventListener("pointerup", (event) => {
      if (down && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) < CLICK_PX) {
        const place = this.#placeOf(event);
        if (place) hooks.onHold(place, this);
      }
      down = null;
    }, { capture: true, signal: this.ended.signal });
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
    this.marks = marks;
    if (!this.element.isConnected) return;
    if (!lines.some((line) => line.curve.step.length)) {
      if (this.drawn) Plotly.purge(this.plot);
      this.drawn = false;
      this.plot.replaceChildren(h("div.chart-empty", {}, "no points here"));
      this.reading(this.at);
      return;
    }
    const longest = look.span?.[1] ?? Math.max(...lines.map((line) => line.curve.x.at(-1) ?? 0));
    const [unit, suffix] = look.x === "time" ? timeUnit(longest) : [1, ""];
    this.scale = unit;
    const traces = lines.flatMap((line) => tracesOf(line, look, unit));
    // Differences may have no positive value at all.
    const log = (this.own.log ?? look.logy) && lines.some(({ curve }) => curve.y.some((v) => v > 0));
    const y = yRange(this.name, lines, traces, log, this.own);
    this.outside.hidden = y.outside === 0;
    this.outside.textContent = `${integer(y.outside)} outside`;
    this.outside.title = "Points far from the others, left out of the range. Press to show them.";
    const width = this.plot.clientWidth;
    const shared = axis();
    const nticks = Math.max(4, Math.floor(width / 75));
    const first = look.span?.[0] ?? Math.min(...lines.map((line) => line.curve.x[0] ?? Infinity));
    const range = look.span && look.span.map((x) => (look.logx ? Math.log10(x / unit) : x / unit));
    this.draws += 1;
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
        ...(range ? { range, autorange: false } : { autorange: true }),
        // A zoom is a range for all charts, never Plotly's own of one.
        uirevision: this.draws,
        nticks,
        ...(whole && { tick0: 0, dtick: 1 }),
        ...(range && look.logx && logAxis(10 ** range[0], 10 ** range[1], nticks, look.x === "step" ? integer : si)),
        tickformat: look.x === "flops" ? "~e" : look.logx || look.x === "tokens" ? "~s" : look.x === "step" ? ",~d" : undefined,
        ticksuffix: suffix,
      },
      yaxis: {
        ...shared,
        type: log ? "log" : "linear",
        fixedrange: true,
        nticks: 5,
        ...ticks(this.name),
        ...y.axis,
        // Its own range is for all drawings until it is changed.
        uirevision: this.draws,
      },
      shapes: marks ? shapesOf(marks, lines[0].curve, unit) : [],
    };
    if (!this.drawn) this.plot.replaceChildren();
    await Plotly.react(this.plot, traces, figure, CONFIG);
    if (!this.drawn) {
      this.drawn = true;
      /** @type {any} */ (this.plot).on("plotly_doubleclick", () => this.hooks.onZoom(null));
      /** @type {any} */ (this.plot).on("plotly_relayout", (/** @type {any} */ change) => this.#zoomed(change));
      this.plot.append(this.cursor, this.dots);
    }
    this.reading(this.at);
  }

  /** @returns {{x: any, y: any} | null} Plotly's axes as drawn, which map between pixels and data */
  get #axes() {
    const drawn = this.drawn ? /** @type {any} */ (this.plot)._fullLayout : null;
    return drawn && { x: drawn.xaxis, y: drawn.yaxis };
  }

  /**
   * Return the nearest point of any curve to the pointer, and the line that is nearest to it.
   *
   * @param {PointerEvent} event
   * @returns {Place | null}
   */
  #placeOf(event) {
    const axes = this.#axes;
    if (!axes) return null;
    const box = this.plot.getBoundingClientRect();
    const px = event.clientX - box.left - axes.x._offset;
    const py = event.clientY - box.top - axes.y._offset;
    if (px < 0 || px > axes.x._length || py < 0 || py > axes.y._length) return null;
    const x = axes.x.p2d(px) * this.scale;
    /** @type {Place | null} */
    let place = null;
    let distance = Infinity;
    for (const { curve } of this.lines) {
      if (!curve.step.length) continue;
      const i = indexAt(curve.x, x);
      for (const j of [i, i + 1]) {
        if (j < curve.x.length && Math.abs(curve.x[j] - x) < distance) {
          distance = Math.abs(curve.x[j] - x);
          place = { step: curve.step[j], x: curve.x[j], run: null };
        }
      }
    }
    if (!place) return null;
    const { step } = place;
    const away = (/** @type {{value: number}} */ { value }) => Math.abs(axes.y.d2p(value) - py);
    const lines = this.values(step).filter(({ value }) => Number.isFinite(value));
    if (lines.length) place.run = lines.reduce((a, b) => (away(b) < away(a) ? b : a)).line.run;
    return place;
  }

  /** @param {KeyboardEvent} event */
  #walk(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const line = this.lines.find(({ run }) => run === this.at?.run) ?? this.lines.find(({ curve }) => curve.step.length);
    if (!by || !line) return;
    event.preventDefault();
    const { step, x } = line.curve;
    const last = step.length - 1;
    const i = this.at ? Math.min(last, Math.max(0, indexAt(step, this.at.step) + by * (event.shiftKey ? 10 : 1))) : last;
    this.hooks.onHold({ step: step[i], x: x[i], run: line.run }, this);
  }

  /** @param {import("./menu.js").Own} own */
  setOwn(own) {
    this.own = own;
    fill(this.tools, menuOf(this, own, this.hooks.onOwn));
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
    if (first < last) this.hooks.onZoom([first, last >= end ? null : last]);
    else this.draw(this.lines, this.look, this.marks);
  }

  /**
   * Show the values of the curves at a place; null for the newest.
   *
   * @param {Place | null} at
   */
  reading(at) {
    this.at = at;
    const found = this.lines.filter((line) => line.curve.step.length);
    this.#showCursor(at);
    if (!found.length) {
      this.read.replaceChildren();
      return;
    }
    if (found.length === 1) {
      const { curve } = found[0];
      const before = at !== null && at.step < curve.step[0];
      const i = at === null ? curve.step.length - 1 : indexAt(curve.step, at.step);
      const where = this.look.x === "flops" ? `${scientific(curve.x[i])} FLOPs` : this.look.x === "tokens" ? si(curve.x[i], "tokens") : `step ${integer(curve.step[i])}`;
      if (before) this.read.replaceChildren(h("b", {}, NONE), ` until ${where}`);
      else this.read.replaceChildren(h("b", {}, metric(this.name, curve.y[i])), at === null ? "" : ` ${where}`);
      this.plot.setAttribute("aria-label", `${this.name}: ${before ? "none" : metric(this.name, curve.y[i])} at step ${integer(curve.step[i])}`);
      return;
    }
    const shown = (at === null ? found.map((line) => ({ line, value: line.curve.y[line.curve.y.length - 1] })) : this.values(at.step))
      .map(({ value }) => value)
      .filter((value) => Number.isFinite(value))
      .sort((a, b) => a - b);
    this.read.textContent = shown.length
      ? `${at === null ? "" : `step ${integer(at.step)} · `}${metric(this.name, shown[0])} to ${metric(this.name, shown[shown.length - 1])}`
      : "";
    this.plot.setAttribute("aria-label", `${this.name} of ${found.length} runs: ${this.read.textContent}`);
  }

  /** @param {Place | null} at */
  #showCursor(at) {
    const axes = this.#axes;
    const px = at && axes ? axes.x.d2p(at.x / this.scale) : NaN;
    const on = axes !== null && px >= -1 && px <= axes.x._length + 1;
    this.cursor.classList.toggle("on", on);
    this.near(at?.run ?? null);
    if (!on || !at) {
      this.dots.replaceChildren();
      return;
    }
    const move = (/** @type {number} */ x, /** @type {number} */ y) => `translate(${Math.round(axes.x._offset + x)}px, ${Math.round(y)}px)`;
    this.cursor.style.transform = move(px, 0);
    const inside = this.values(at.step)
      .map(({ line, value }) => ({ line, y: axes.y.d2p(value) }))
      .filter(({ y }) => y >= 0 && y <= axes.y._length);
    this.dots.replaceChildren(...inside.map(({ line, y }) => {
      const dot = h("i", { vars: { "--key": line.colour } });
      dot.style.transform = move(px, axes.y._offset + y);
      return dot;
    }));
  }

  /**
   * Draw the line of a run bold and the others faint; null for all alike.
   *
   * @param {string | null} run
   */
  near(run) {
    const bold = run !== null && this.lines.length > 1;
    this.plot.classList.toggle("has-near", bold);
    const lit = bold ? mainOf(run) : "";
    for (const trace of this.plot.querySelectorAll(".scatterlayer .trace")) trace.classList.toggle("near", bold && trace.classList.contains(`trace${lit}`));
  }

  /**
   * Return what happened near a place, in words.
   *
   * @param {Place} at
   */
  marksAt(at) {
    const axes = this.#axes;
    const curve = this.lines[0]?.curve;
    if (!axes || !this.marks || !curve || curve.step.length < 2) return [];
    const perPixel = Math.abs(axes.x.p2d(MARK_PX) - axes.x.p2d(0)) * this.scale;
    const last = curve.step.length - 1;
    const stepsPerX = (curve.step[last] - curve.step[0]) / (curve.x[last] - curve.x[0] || 1);
    return marksNear(this.marks, at.step, Math.max(0.5, perPixel * stepsPerX));
  }

  /** Return the values of all runs that have one at a step, the best first: the lowest, or of rates the highest. */
  values(/** @type {number} */ step) {
    const sign = /tokens_per_s|mfu|acc$|utilization/.test(this.name) ? -1 : 1;
    return this.lines
      .filter((line) => reaches(line.curve, step))
      .map((line) => ({ line, value: line.curve.y[indexAt(line.curve.step, step)] }))
      .sort((a, b) => (Number.isNaN(a.value) ? 1 : Number.isNaN(b.value) ? -1 : sign * (a.value - b.value)));
  }

  /** @param {boolean} pinned */
  setPinned(pinned) {
    this.pinButton?.setAttribute("aria-pressed", String(pinned));
    if (this.pinButton) this.pinButton.textContent = pinned ? "★" : "☆";
  }

  destroy() {
    this.ended.abort();
    if (this.drawn) /** @type {any} */ (globalThis).Plotly.purge(this.plot);
    this.element.remove();
  }
}
