/** One chart: title, values at the cursor, plot. */

import { fill, h } from "../dom.js";
import { metric, NONE } from "../format.js";
import { logOf, scaleOf, stepOf, timeUnit, whereOf, xAxis, yAxis } from "./axes.js";
import { areaOf, drawing, fileOf } from "./drawing.js";
import { partsOf } from "./expression.js";
import { RANGES } from "./feed.js";
import { drawKey } from "./lines.js";
import { deviationAt, indexAt, nearestPoint, reaches, stepsBetween } from "./points.js";
import { forecastTraces, heatAxis, heatTraces, marksNear, shapesOf, tracesOf, valuesOf } from "./traces.js";
/** @import { Line, Look, Place } from "./lines.js" */
/** @import { Marks } from "./traces.js" */

/** Return the ends in words, one if both read alike. @param {number[]} values @param {(v: number) => string} text */
export const endsOf = (values, text) => [...new Set([values[0], values[values.length - 1]].map(text))].join(" to ");

/** How near, in pixels, a mark must be to the cursor for its words to show. */
const MARK_PX = 5;
/** A pointer that has moved less than this was a click. */
const CLICK_PX = 4;
/** From this width on, a drag is a zoom. */
const DRAG_PX = 8;
const FILE = { width: 900, height: 480 };

export class Chart {
  /**
   * @param {string} name
   * @param {{onHover: (place: Place | null, chart: Chart) => void,
   *   onHold?: (place: Place, chart: Chart) => void,
   *   onWalk: (place: Place, chart: Chart) => void,
   *   onZoom?: (range: [number, number | null] | null) => void,
   *   onOwn: (own: import("./toolbar.js").Own) => void,
   *   onPin?: () => void}} hooks
   */
  constructor(name, hooks) {
    this.name = name;
    /** The metric whose unit the values have. */
    this.unit = partsOf(name)[0] ?? name;
    this.hooks = hooks;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Look} */
    this.look = { x: "step", logx: false, logy: false, band: true, span: null };
    this.scale = 1;
    /** What is drawn; null before the first points. @type {import("./drawing.js").Figure | null} */
    this.figure = null;
    this.visible = false;
    /** Where it was on the page when it came into sight or left it, in pixels. */
    this.top = 0;
    /** Of the plot. @type {{width: number, height: number} | null} */
    this.size = null;
    /** @type {Place | null} */
    this.at = null;
    this.cursorIsRight = false;
    /** @type {Marks | null} */
    this.marks = null;
    /** Of its metric; none beside a part of the curve. @type {Marks["forecast"]} */
    this.forecast = null;
    this.plot = h("div.plot", { role: "img", tabindex: "0", "aria-label": name });
    this.cursor = h("div.cursor");
    this.dots = h("div.cursor-dots", { "aria-hidden": "true" });
    this.zoomed = h("div.zoomed", { hidden: true });
    this.read = h("span.read");
    this.pinButton = hooks.onPin
      && h("button.pin", { type: "button", "aria-label": `Pin ${name} to the top`, onclick: hooks.onPin }, "☆");
    /** What this chart has for itself. @type {import("./toolbar.js").Own} */
    this.own = {};
    const showAll = () => hooks.onOwn({ ...this.own, all: true });
    this.outside = h("button.outside", { type: "button", hidden: true, onclick: showAll });
    /** What a logarithmic axis cannot show. */
    this.unplaced = h("button.outside", {
      type: "button", hidden: true,
      title: "Values at or below zero have no place on a logarithmic axis. Press for a linear one.",
      onclick: () => hooks.onOwn({ ...this.own, log: false }),
    });
    this.tools = h("span.chart-tools");
    const parts = [this.pinButton, this.outside, this.unplaced, this.read, this.tools];
    const caption = h("figcaption.chart-head", {}, h("h3", { title: name }, name), parts);
    this.key = h("div.legend");
    this.element = h("figure.chart", { "data-metric": name }, caption, this.key, this.plot);
    this.setOwn({});
    this.plot.append(h("div.chart-empty.waiting", {}, "…"));
    /** Where the pointer rests: new points move the steps below it. @type {PointerEvent | null} */
    this.pointer = null;
    this.plot.addEventListener("pointermove", (event) => {
      this.pointer = event;
      hooks.onHover(this.#placeOf(event), this);
    });
    this.plot.addEventListener("pointerleave", () => {
      this.pointer = null;
      hooks.onHover(null, this);
    });
    this.plot.addEventListener("keydown", (event) => this.#walk(event));
    this.plot.addEventListener("dblclick", () => hooks.onZoom?.(null));
    this.#drags();
  }

  /** Hold the cursor at a click, and zoom into a range at a drag. */
  #drags() {
    /** @type {PointerEvent | null} */
    let down = null;
    const inside = (/** @type {PointerEvent} */ event) => {
      const area = areaOf(this.figure ?? FILE);
      return Math.min(area.width, Math.max(0, event.clientX - this.plot.getBoundingClientRect().left - area.left));
    };
    const move = (/** @type {PointerEvent} */ event) => {
      // A finger that moves scrolls the page.
      if (!down || event.pointerType === "touch" || !this.figure) return;
      const [from, to] = [inside(down), inside(event)].sort((a, b) => a - b);
      this.zoomed.hidden = to - from < DRAG_PX;
      this.zoomed.style.left = `${areaOf(this.figure).left + from}px`;
      this.zoomed.style.width = `${to - from}px`;
    };
    const up = (/** @type {PointerEvent} */ event) => {
      removeEventListener("pointermove", move);
      if (!down) return;
      if (Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) < CLICK_PX) {
        const place = this.#placeOf(event);
        if (place) this.hooks.onHold?.(place, this);
      } else if (!this.zoomed.hidden) {
        const axes = this.#axes;
        const [from, to] = [inside(down), inside(event)].sort((a, b) => a - b);
        if (axes) this.#zoomTo(axes.x.value(from) * this.scale, axes.x.value(to) * this.scale);
      }
      this.zoomed.hidden = true;
      down = null;
    };
    this.plot.addEventListener("pointerdown", (event) => {
      down = event.button === 0 && this.#placeOf(event) ? event : null;
      addEventListener("pointermove", move);
      // Drags end anywhere.
      addEventListener("pointerup", up, { once: true });
    });
  }

  /** @param {Line[]} lines @param {Look} look @param {Marks | null} marks */
  draw(lines, look, marks) {
    this.lines = lines;
    this.look = look;
    this.marks = marks;
    this.forecast = marks?.forecast?.metric === this.name && !look.range ? marks.forecast : null;
    if (!this.element.isConnected) return;
    fill(this.key, drawKey(lines, this.#isHeat ? valuesOf(lines).map((one) => metric(this.unit, one)) : null));
    if (!lines.some((line) => line.curve.step.length)) {
      this.figure = null;
      Object.assign(this.plot, { figure: null });
      this.plot.replaceChildren(h("div.chart-empty", {}, "no points here"));
      this.reading(this.at);
      return;
    }
    const { width, height } = this.size ?? { width: this.plot.clientWidth, height: this.plot.clientHeight };
    this.figure = this.#figureOf(width, height);
    // For tests, and for people at the browser's console.
    Object.assign(this.plot, { figure: this.figure });
    const drawn = drawing(this.figure);
    const before = this.plot.querySelector(".chart-svg");
    if (before) before.replaceWith(drawn);
    else this.plot.replaceChildren(drawn, this.cursor, this.dots, this.zoomed);
    this.reading(this.at);
    if (this.pointer) this.hooks.onHover(this.#placeOf(this.pointer), this);
  }

  get #isHeat() { return this.own.heat && this.lines.some(({ curve }) => curve.step.length) && this.lines.length > 1; }

  /** Return the chart as an SVG file. @returns {{text: string, width: number, height: number} | null} null if empty */
  file() {
    if (!this.figure) return null;
    const figure = this.#figureOf(FILE.width, FILE.height);
    const traces = figure.traces.filter(({ near }) => !near);
    return { text: fileOf({ ...figure, traces }, this.name), ...FILE };
  }

  /** @param {number} width @param {number} height @returns {import("./drawing.js").Figure} */
  #figureOf(width, height) {
    const { lines, look } = this;
    const longest = look.span?.[1] ?? Math.max(...lines.map((line) => line.curve.x.at(-1) ?? 0));
    const [unit, suffix] = look.x === "time" ? timeUnit(longest) : [1, ""];
    this.scale = unit;
    const first = look.span?.[0]
      ?? Math.min(...lines.map(({ curve: { x } }) => (look.logx ? x.find((one) => one > 0) : x[0]) ?? Infinity));
    const forecast = forecastTraces(this.forecast, lines[0].colour, [first / unit, longest / unit]);
    const traces = [...forecast, ...lines.flatMap((line) => tracesOf(line, look, unit, lines.length > RANGES))];
    const { log, note } = logOf(lines, this.own.log ?? look.logy);
    this.unplaced.hidden = note === null;
    this.unplaced.textContent = note;
    const y = yAxis(this.unit, lines, traces.filter(({ near }) => !near), log, this.own);
    this.outside.hidden = !y.outside;
    this.outside.textContent = y.outside;
    this.outside.title = `${y.named}. Far from the others, so left out of the range. Press to show.`;
    const logx = look.logx && first > 0 && first < Infinity;
    return {
      width,
      height,
      x: xAxis(first / unit, longest / unit, Math.max(4, Math.floor(width / 75)), { x: look.x, log: logx, suffix }),
      y: this.#isHeat ? heatAxis(lines) : y.axis,
      traces: this.#isHeat ? heatTraces(lines, unit) : traces,
      shapes: this.marks ? shapesOf(this.marks, lines[0].curve, unit) : [],
    };
  }

  /** The scales as drawn, and where they begin; null before the first points. */
  get #axes() {
    if (!this.figure) return null;
    const area = areaOf(this.figure);
    return { ...area, x: scaleOf(this.figure.x, area.width), y: scaleOf(this.figure.y, area.height, true) };
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
    const px = event.clientX - box.left - axes.left;
    const py = event.clientY - box.top - axes.top;
    if (px < 0 || px > axes.width || py < 0 || py > axes.height) return null;
    const x = axes.x.value(px) * this.scale;
    /** @type {Place | null} */
    const place = nearestPoint(this.lines.map(({ curve }) => curve), x);
    if (!place) return null;
    const { step } = place;
    const away = (/** @type {{value: number}} */ { value }) => Math.abs(axes.y.pixel(value) - py);
    const lines = this.values(step).filter(({ value }) => Number.isFinite(value));
    if (lines.length) place.run = lines.reduce((a, b) => (away(b) < away(a) ? b : a)).line.run;
    return place;
  }

  /** @param {KeyboardEvent} event */
  #walk(event) {
    if (event.key === "+" || event.key === "-") this.#zoomBy(event.key);
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const own = this.lines.find(({ run }) => run === this.at?.run);
    const line = own ?? this.lines.find(({ curve }) => curve.step.length);
    if (!by || !line) return;
    event.preventDefault();
    const { step, x } = line.curve;
    const last = step.length - 1;
    const next = this.at ? indexAt(step, this.at.step) + by * (event.shiftKey ? 10 : 1) : last;
    const i = Math.min(last, Math.max(0, next));
    this.hooks.onWalk({ step: step[i], x: x[i], run: line.run }, this);
  }

  /** Zoom by keyboard: into half of the range around the cursor, or out to all. @param {"+" | "-"} key */
  #zoomBy(key) {
    if (key === "-") this.hooks.onZoom?.(null);
    const axes = this.#axes;
    if (key === "-" || !axes) return;
    const at = this.at ? axes.x.pixel(this.at.x / this.scale) : axes.width / 2;
    const from = Math.min(axes.width / 2, Math.max(0, at - axes.width / 4));
    this.#zoomTo(axes.x.value(from) * this.scale, axes.x.value(from + axes.width / 2) * this.scale);
  }

  /** @param {import("./toolbar.js").Own} own */
  setOwn(own) {
    this.own = own;
    const isOpen = this.tools.querySelector("details")?.open;
    if (isOpen) import("./menu.js").then(({ itemsOf }) => this.#drawMenu(itemsOf(this, own, this.hooks.onOwn)));
    else this.#drawMenu(null);
  }

  /** @param {HTMLElement | null} items made when it is open: a page can have hundreds of charts */
  #drawMenu(items) {
    const ontoggle = (/** @type {any} */ { target }) => target.open && this.setOwn(this.own);
    const summary = h("summary", { "aria-label": `Menu of ${this.name}` }, "⋯");
    fill(this.tools, h("details.menu.chart-menu", { key: "menu", ontoggle }, summary, items));
  }

  /** @param {number} from on the x axis of the data @param {number} to */
  #zoomTo(from, to) {
    const steps = stepsBetween(this.lines.map(({ curve }) => curve), from, to);
    if (steps) this.hooks.onZoom?.(steps);
  }

  /** Show the values of the curves at a place; null for the newest. @param {Place | null} at */
  reading(at) {
    this.at = at;
    const found = this.lines.filter((line) => line.curve.step.length && !line.faint);
    this.#showCursor(at);
    if (!found.length) this.read.replaceChildren();
    if (!found.length) return;
    if (found.length === 1) {
      const { curve } = found[0];
      const before = at !== null && at.step < curve.step[0];
      const i = at === null ? curve.step.length - 1 : indexAt(curve.step, at.step);
      const point = { step: curve.step[i], x: curve.x[i] };
      const where = whereOf(this.look.x, point);
      if (before) this.read.replaceChildren(h("b", {}, NONE), ` until ${where}`);
      else this.read.replaceChildren(h("b", {}, metric(this.unit, curve.y[i])), at === null ? "" : ` ${where}`);
      this.plot.setAttribute(
        "aria-label",
        `${this.name}: ${before ? "none" : metric(this.unit, curve.y[i])} at ${stepOf(this.look.x, point)}`,
      );
      return;
    }
    const shown = (
      at === null ? found.map((line) => ({ line, value: line.curve.y[line.curve.y.length - 1] })) : this.values(at.step)
    )
      .map(({ value }) => value)
      .filter((value) => Number.isFinite(value))
      .sort((a, b) => a - b);
    this.read.textContent = shown.length
      ? `${at === null ? "" : `${stepOf(this.look.x, at)} · `}${endsOf(shown, (value) => metric(this.unit, value))}`
      : "";
    this.plot.setAttribute(
      "aria-label", `${this.name} of ${found.length} ${found[0].metric ? "curves" : "runs"}: ${this.read.textContent}`,
    );
  }

  /** @param {Place | null} at */
  #showCursor(at) {
    const axes = this.#axes;
    const px = at && axes ? axes.x.pixel(at.x / this.scale) : NaN;
    const on = axes !== null && px >= -1 && px <= axes.width + 1;
    this.cursor.classList.toggle("on", on);
    this.near(at?.run ?? null);
    if (!on) this.dots.replaceChildren();
    if (!on || !at) return;
    const move = (/** @type {number} */ x, /** @type {number} */ y) =>
      `translate(${Math.round(axes.left + x)}px, ${Math.round(y)}px)`;
    this.cursor.style.transform = move(px, 0);
    // Computed, not measured: to measure would lay the page out once more for each move.
    this.cursorIsRight = px > axes.width / 2;
    const inside = this.values(at.step)
      .map(({ line, value, x }) => ({ line, x: axes.x.pixel(x / this.scale), y: axes.y.pixel(value) }))
      .filter(({ x, y }) => x >= -1 && y >= 0 && y <= axes.height && !this.#isHeat);
    this.dots.replaceChildren(...inside.map(({ line, x, y }) => {
      const dot = h("i", { vars: { "--key": line.colour } });
      dot.style.transform = move(x, axes.top + y);
      return dot;
    }));
  }

  /**
   * Draw the line of a run bold and the others faint; all alike for null or a run without a line.
   *
   * @param {string | null} run
   */
  near(run) {
    const bold = this.lines.length > 1 && this.lines.some((line) => line.run === run);
    this.plot.classList.toggle("has-near", bold);
    for (const trace of this.plot.querySelectorAll(".trace")) {
      trace.classList.toggle("near", bold && trace.getAttribute("data-run") === run);
    }
  }

  /** Return what happened near a place, in words. @param {Place} at */
  marksAt(at) {
    const axes = this.#axes;
    const curve = this.lines[0]?.curve;
    if (!axes || !this.marks || !curve || curve.step.length < 2) return [];
    const perPixel = Math.abs(axes.x.value(MARK_PX) - axes.x.value(0)) * this.scale;
    const last = curve.step.length - 1;
    const stepsPerX = (curve.step[last] - curve.step[0]) / (curve.x[last] - curve.x[0] || 1);
    const near = marksNear(this.marks, at.step, Math.max(0.5, perPixel * stepsPerX), curve);
    return this.forecast && at.step === curve.step[last] ? [...near, this.forecast.text] : near;
  }

  /** As of the server; null where it is not known. */
  get goal() { return this.lines[0]?.curve.goal ?? null; }

  /**
   * Return the values of all runs that have one at a step, the best first; without a goal the lowest. `sd`: of a mean.
   */
  values(/** @type {number} */ step) {
    const sign = this.goal === "maximize" ? -1 : 1;
    return this.lines
      .filter(({ curve }) => reaches(curve, step))
      .map((line) => ({ line, at: indexAt(line.curve.step, step) }))
      .map(({ line, at }) => ({ line, x: line.curve.x[at], value: line.curve.y[at], sd: deviationAt(line.curve, at) }))
      .sort((a, b) => (Number.isNaN(a.value) ? 1 : Number.isNaN(b.value) ? -1 : sign * (a.value - b.value)));
  }

  /** @param {boolean} pinned */
  setPinned(pinned) {
    this.pinButton?.setAttribute("aria-pressed", String(pinned));
    if (this.pinButton) this.pinButton.textContent = pinned ? "★" : "☆";
  }
}
