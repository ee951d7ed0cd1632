/** The metric over two parameters of a sweep: levels between its trials, and the trials as points. */

import { along } from "../colour.js";
import { fill, h, s } from "../dom.js";
import { isSeed, number } from "../format.js";
import { read, write } from "../urlstate.js";
import { parameterAxis, result, varying } from "./axis.js";

/**
 * @typedef {import("../types.js").SweepDetail} SweepDetail
 *
 * @typedef {object} Point a trial: where it is, from 0 to 1, and its value
 * @property {number} x
 * @property {number} y
 * @property {number} value
 */

const COLUMNS = 64;
const ROWS = 44;
const LEVELS = 9;
/** With fewer trials, what is between them is not known. */
const LEAST = 4;
const HEIGHT = 340;
const MARGIN = { left: 84, right: 32, top: 10, bottom: 44 };
/** How fast the weight of a trial falls with the distance. */
const POWER = 3;

/**
 * Return the value at a place between the points: their mean, weighted by how near they are.
 *
 * @param {Point[]} points
 * @param {number} x
 * @param {number} y
 */
export function between(points, x, y) {
  let sum = 0;
  let weights = 0;
  for (const point of points) {
    const distance = Math.hypot(point.x - x, point.y - y);
    if (distance < 1e-6) return point.value;
    const weight = distance ** -POWER;
    sum += weight * point.value;
    weights += weight;
  }
  return sum / weights;
}

/**
 * Return the levels of a grid as rectangles: neighbours of one row with the same level are one.
 *
 * @param {Point[]} points
 * @param {number} low
 * @param {number} high
 * @returns {{row: number, column: number, width: number, level: number}[]} the lowest row first
 */
export function levels(points, low, high) {
  /** @type {ReturnType<typeof levels>} */
  const found = [];
  for (let row = 0; row < ROWS; row += 1) {
    for (let column = 0; column < COLUMNS; column += 1) {
      const value = between(points, (column + 0.5) / COLUMNS, (row + 0.5) / ROWS);
      const level = Math.min(LEVELS - 1, Math.max(0, Math.floor((LEVELS * (value - low)) / (high - low || 1))));
      const before = found.at(-1);
      if (before?.row === row && before.level === level) before.width += 1;
      else found.push({ row, column, width: 1, level });
    }
  }
  return found;
}

export class Contour {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
    this.caption = h("span.dim");
    /** @type {string[]} the chosen parameters */
    this.chosen = (read("contour") ?? "").split(",").filter(Boolean);
    /** @type {SweepDetail | null} */
    this.sweep = null;
    this.drawn = "";
  }

  /** @param {SweepDetail} sweep */
  draw(sweep) {
    this.sweep = sweep;
    const paths = varying(sweep);
    const known = sweep.trials.filter((trial) => Number.isFinite(result(trial) ?? NaN));
    this.place.hidden = paths.length < 2 || known.length < LEAST;
    if (this.place.hidden) return;
    const [across, up] = this.#pair(paths);
    const sign = JSON.stringify([across, up, this.place.clientWidth, along(0), known.map((trial) => [trial.number, result(trial)])]);
    if (sign === this.drawn) return;
    this.drawn = sign;
    const values = known.map((trial) => Number(result(trial)));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const [xAxis, yAxis] = [across, up].map((path) => parameterAxis(path, paths, known));
    const dots = known.map((trial, i) => ({ trial, x: xAxis.at(trial) ?? 0.5, y: yAxis.at(trial) ?? 0.5, value: values[i] }));
    const width = Math.max(320, Math.min(900, this.place.clientWidth));
    const px = (/** @type {number} */ share) => MARGIN.left + share * (width - MARGIN.left - MARGIN.right);
    const py = (/** @type {number} */ share) => HEIGHT - MARGIN.bottom - share * (HEIGHT - MARGIN.top - MARGIN.bottom);
    const fieldOf = (/** @type {string} */ name, /** @type {string} */ value, /** @type {(path: string) => void} */ act) =>
      h("label.field", { key: name }, name, h("select", { value, onchange: (/** @type {Event} */ event) => act(/** @type {HTMLSelectElement} */ (event.target).value) }, paths.map((path) => h("option", { value: path }, path))));
    fill(
      this.place,
      h("h3", {}, "Contour"),
      h("div.bar", {}, fieldOf("across", across, (path) => this.#choose(path, path === up ? across : up)), fieldOf("up", up, (path) => this.#choose(path === across ? up : across, path))),
      s(
        "svg",
        { class: "contour", viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "group", "aria-label": `${sweep.metric} over ${across} and ${up}` },
        levels(dots, low, high).map(({ row, column, width: wide, level }) =>
          s("rect", { x: px(column / COLUMNS).toFixed(1), y: py((row + 1) / ROWS).toFixed(1), width: (px(wide / COLUMNS) - px(0) + 0.5).toFixed(1), height: (py(0) - py(1 / ROWS) + 0.5).toFixed(1), fill: along((level + 0.5) / LEVELS) }),
        ),
        xAxis.ticks.map(({ at, label: text }) => s("text", { x: px(at), y: HEIGHT - MARGIN.bottom + 16, "text-anchor": "middle" }, text)),
        yAxis.ticks.map(({ at, label: text }) => s("text", { x: MARGIN.left - 6, y: py(at) + 4, "text-anchor": "end" }, text)),
        s("text", { class: "title", x: px(0.5), y: HEIGHT - 6, "text-anchor": "middle" }, across),
        s("text", { class: "title", transform: `translate(12 ${py(0.5)}) rotate(-90)`, "text-anchor": "middle" }, up),
        dots.map(({ trial, x, y, value }) => {
          const words = `${trial.run.name}: ${xAxis.words?.(trial)}, ${yAxis.words?.(trial)}, ${sweep.metric} ${number(value)}`;
          const show = (/** @type {string} */ text) => () => {
            this.caption.textContent = text;
          };
          return s(
            "a",
            { href: `/runs/${trial.run.id}`, "aria-label": words, onpointerenter: show(words), onpointerleave: show("") },
            s("circle", { class: trial.best ? "best" : "", cx: px(x).toFixed(1), cy: py(y).toFixed(1), r: trial.best ? 6 : 4 }),
            s("title", {}, words),
          );
        }),
      ),
      h(
        "div.bar",
        {},
        h("span.field", { key: "key" }, `${sweep.metric} ${number(low)}`, h("i.colour-key", { vars: { "--from": along(0), "--middle": along(0.5), "--to": along(1) } }), number(high)),
        h("span.dim", { key: "how" }, "Points are trials. Between them, values are weighted by distance: an estimate, not a measurement."),
        this.caption,
      ),
    );
  }

  /** The two parameters: the chosen ones, else the first two that vary besides the seed. @param {string[]} paths */
  #pair(paths) {
    const chosen = this.chosen.filter((path) => paths.includes(path));
    const rest = [...paths.filter((path) => !isSeed(path)), ...paths.filter(isSeed)].filter((path) => !chosen.includes(path));
    return [...chosen, ...rest].slice(0, 2);
  }

  /** @param {string} across @param {string} up */
  #choose(across, up) {
    this.chosen = [across, up];
    write({ contour: this.chosen.join(",") });
    if (this.sweep) this.draw(this.sweep);
  }
}
