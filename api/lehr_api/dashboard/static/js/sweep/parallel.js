/**
 * Parallel coordinates: one line per trial, one axis per parameter that varies, the metric last.
 *
 * A drag along an axis chooses trials. By keyboard, the arrow keys choose and Escape takes the choice away.
 */

import { path as pathOf } from "../charts/drawing.js";
import { keyOf, scaleOf } from "../colour.js";
import { fill, h, s } from "../dom.js";
import { number } from "../format.js";
import { axisOf, narrowed, parameterAxis, result, varying } from "./axis.js";
/** @import { SweepDetail, TrialView } from "../types.js" */

/**
 * @typedef {import("./axis.js").Axis & {key: string}} NamedAxis
 */

const HEIGHT = 300;
const TOP = 44;
const BOTTOM = 14;
const SIDE = 70;
/** A shorter drag than this share of an axis is a press, which takes its choice away. */
const LEAST = 0.02;

export class Parallel {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    /** @type {Map<string, [number, number]>} by axis, the chosen part of it */
    this.chosen = new Map();
    /** @type {SweepDetail | null} */
    this.sweep = null;
  }

  /** @param {SweepDetail} sweep */
  draw(sweep) {
    this.sweep = sweep;
    const paths = varying(sweep);
    const axes = /** @type {NamedAxis[]} */ ([
      ...paths.map((path) => ({ key: path, ...parameterAxis(path, paths, sweep.trials) })),
      { key: "", ...axisOf(sweep.metric, result, sweep.trials, (v) => number(v)) },
    ]);
    const width = Math.max(320, this.place.clientWidth);
    const x = (/** @type {number} */ i) => SIDE + (i / Math.max(1, axes.length - 1)) * (width - 2 * SIDE);
    const results = sweep.trials.map(result).filter((v) => v !== null && Number.isFinite(v)).map(Number);
    const scale = scaleOf(results, sweep.metric, (v) => number(v));
    const inside = sweep.trials.filter((trial) => this.#isChosen(trial, axes));
    const label = `${sweep.trials.length} trials over ${axes.map((axis) => axis.title).join(", ")}`;
    const svg = s(
      "svg", { class: "parallel", viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": label },
      sweep.trials.map((trial) => this.#line(trial, axes, x, scale, inside.includes(trial))),
      axes.map((axis, i) => this.#axis(axis, i, axes, x(i), width / axes.length)),
    );
    const said = this.chosen.size
      ? `${inside.length} of ${sweep.trials.length} trials chosen`
      : "Drag along an axis, or use its arrow keys, to choose trials.";
    fill(this.place, svg, h(
      "div.bar.parallel-bar", {}, results.length > 1 && keyOf(scale), h("span.dim", { key: "count" }, said),
      this.chosen.size > 0
        && h("button.quiet", { key: "clear", type: "button", onclick: () => this.#choose(null, null) }, "Show all"),
    ));
  }

  /** @param {TrialView} trial @param {NamedAxis[]} axes */
  #isChosen(trial, axes) {
    return [...this.chosen].every(([key, [from, to]]) => {
      const at = axes.find((axis) => axis.key === key)?.at(trial) ?? null;
      return at !== null && at >= from && at <= to;
    });
  }

  /** @param {string | null} key @param {[number, number] | null} part */
  #choose(key, part) {
    if (key === null) this.chosen.clear();
    else if (part === null) this.chosen.delete(key);
    else this.chosen.set(key, part);
    if (this.sweep) this.draw(this.sweep);
  }

  /**
   * Choose trials by keyboard: up leaves out a tenth of the axis at its lower end, down one at its upper end.
   *
   * @param {KeyboardEvent} event
   * @param {NamedAxis} axis
   */
  #step(event, { key, top }) {
    if (!["ArrowUp", "ArrowDown", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    this.#choose(
      key, event.key === "Escape" ? null : narrowed(this.chosen.get(key) ?? [0, 1], event.key === "ArrowUp", top),
    );
  }

  /** @param {number} share */
  #y(share) {
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  }

  /**
   * @param {TrialView} trial
   * @param {NamedAxis[]} axes
   * @param {(i: number) => number} x
   * @param {import("../colour.js").Scale} scale
   * @param {boolean} inside
   */
  #line(trial, axes, x, scale, inside) {
    const ats = axes.map((axis) => axis.at(trial));
    const there = axes.flatMap((_, i) => (ats[i] === null ? [] : i));
    const value = result(trial);
    const known = value !== null && Number.isFinite(value);
    const of = axes.map((axis) => axis.words?.(trial)).filter(Boolean).join(", ");
    const words = `${trial.run.name}: ${of || `${this.sweep?.metric} ${number(value)}`}, ${trial.run.state}`;
    return s(
      "a", { href: `/runs/${trial.run.id}`, "aria-label": words }, s("path", {
        class: inside ? "" : "off",
        d: pathOf(there.map(x), there.map((i) => this.#y(Number(ats[i])))),
        // Failed trials are red; other trials without a value are grey.
        stroke: scale.colour(known ? value : trial.run.state === "failed" ? NaN : null),
        "stroke-dasharray": known ? null : "3 4",
      }), s("title", {}, words),
    );
  }

  /** @param {NamedAxis} axis @param {number} i @param {NamedAxis[]} axes @param {number} x @param {number} room */
  #axis(axis, i, axes, x, room) {
    const last = i === axes.length - 1;
    const part = this.chosen.get(axis.key);
    const letters = Math.max(6, Math.floor((axes.length > 4 ? 2 : 1) * room / 8));
    return [
      s("line", { class: "axis", x1: x, x2: x, y1: this.#y(0), y2: this.#y(1) }),
      // With many axes the names stand in two rows.
      s("text", {
        class: "title", key: `title ${axis.key}`, x, y: axes.length > 4 && i % 2 ? 30 : 14,
        "text-anchor": i === 0 ? "start" : last ? "end" : "middle",
      }, axis.title.slice(-letters), s("title", {}, axis.key || axis.title)),
      axis.ticks.map((tick) => s(
        "text", { x: x + (last ? 7 : -7), y: this.#y(tick.at) + 4, "text-anchor": last ? "start" : "end" }, tick.label,
      )),
      part && s("rect", {
        class: "chosen", x: x - 6, width: 12, y: this.#y(part[1]), height: this.#y(part[0]) - this.#y(part[1]),
      }),
      s("rect", {
        class: "grip", key: `grip ${axis.key}`, role: "button", tabindex: 0,
        "aria-label": `Choose trials by ${axis.key || axis.title}`,
        onkeydown: (/** @type {KeyboardEvent} */ event) => this.#step(event, axis), x: x - 10, width: 20, y: TOP - 6,
        height: HEIGHT - TOP - BOTTOM + 12,
        onpointerdown: (/** @type {PointerEvent} */ event) => this.#drag(event, axis.key),
      }),
    ];
  }

  /** @param {PointerEvent} event @param {string} key */
  #drag(event, key) {
    event.preventDefault();
    const svg = /** @type {SVGElement} */ (event.currentTarget).closest("svg");
    const box = svg?.getBoundingClientRect();
    if (!box) return;
    const share = (/** @type {PointerEvent} */ at) =>
      Math.min(1, Math.max(0, 1 - (((at.clientY - box.top) / box.height) * HEIGHT - TOP) / (HEIGHT - TOP - BOTTOM)));
    const from = share(event);
    const end = (/** @type {PointerEvent} */ up) => {
      removeEventListener("pointerup", end);
      const to = share(up);
      this.#choose(key, Math.abs(to - from) < LEAST ? null : [Math.min(from, to), Math.max(from, to)]);
    };
    addEventListener("pointerup", end);
  }
}
