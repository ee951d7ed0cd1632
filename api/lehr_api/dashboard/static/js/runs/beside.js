/** The charts beside the rows: a line for each run that has a row, and of each folded group the mean. */

import { get } from "../api.js";
import { Board } from "../charts/board.js";
import { swatch } from "../charts/drawing.js";
import { boardRun } from "../charts/lines.js";
import { keyOf, slots, stroke } from "../colour.js";
import { colourField, scaleBy } from "../colour_by.js";
import { fill, h, mount, throttled } from "../dom.js";
import { eye } from "../form.js";
import { memory, read } from "../urlstate.js";
/** @import { RunView } from "../types.js" */

/** @typedef {ReturnType<typeof import("./groups.js").linesOf>[0]} Row */

/** The most lines that are drawn: more cannot be distinguished. */
export const MOST_LINES = 20;
/** How long the curves wait for more rows, in milliseconds: those of rows that move on would be read for nothing. */
const SETTLE_MS = 2000;
/** The most runs whose curves they are made of. */
const MOST_RUNS = 400;
/** The most runs whose metrics one request asks for. */
const BATCH = 200;

/**
 * Return the rows that are drawn, whole, and what is said of the others.
 *
 * @param {Row[]} rows in the order of the table
 * @returns {{drawn: Row[], note: string}}
 */
export function drawnOf(rows) {
  const trained = rows.map((row) => ({ ...row, runs: row.runs.filter((run) => run.step !== null) }))
    .filter((row) => row.runs.length);
  let size = 0;
  const drawn = trained.slice(0, MOST_LINES).filter((row, i) => (size += row.runs.length) <= MOST_RUNS || i === 0)
    .map((row) => ({ ...row, runs: row.runs.slice(0, MOST_RUNS) }));
  const count = drawn.length === 1 ? "row" : `${drawn.length} rows`;
  return { drawn, note: drawn.length < trained.length ? `The charts show the first ${count}.` : "" };
}

export class Beside {
  /**
   * @param {HTMLElement} place
   * @param {(run: string | null) => void} onLine called with the run whose line is under the pointer
   * @param {(colour?: string) => void} onChange called when a row is hidden or shown, and with another key of colours
   */
  constructor(place, onLine, onChange) {
    this.onChange = onChange;
    this.hidden = new Set((read("hide") ?? "").split(",").filter(Boolean));
    /** What is said of the rows that are not drawn. */
    this.note = "";
    this.key = h("div");
    this.choice = h("span");
    /** @type {Row[]} */
    this.rows = [];
    /** @type {Map<string, number>} */
    this.slots = new Map();
    /** @type {Map<string, string>} by row, where colours show a value */
    this.colours = new Map();
    this.drawn = "";
    /** Until when the curves wait. */
    this.patient = 0;
    const charts = h("div");
    this.board = new Board(charts, [], { onLine, several: true, pins: "runs-pins", tools: [this.choice] });
    mount(place, h("h2.unseen", {}, "Curves"), this.board.bar.element, this.key, charts);
    this.learn = throttled(() => this.#learn(), 5000);
  }

  /**
   * Show the curves of these rows.
   *
   * @param {Row[]} rows in the order of the table
   * @param {(runs: RunView[]) => (run: RunView) => string} labels of those that have lines of their own
   * @param {string} colour the setting or metric that colours show; "" for a colour for each row
   * @param {string} groups the key by which runs are grouped, whose numbers they show then; "" if they are not
   * @param {import("./configs.js").Configs} configs
   * @param {string[]} offered what else colours can show
   * @param {boolean} settled whether the rows that are to come are below these
   * @returns {boolean} whether a mark in the rows is another
   */
  show(rows, labels, colour, groups, configs, offered, settled) {
    const { drawn, note } = drawnOf(rows);
    this.rows = drawn;
    // Which of the groups are drawn changes no colour.
    const [alone, folded] = [drawn.filter(({ name }) => name === null), rows.filter(({ name }) => name !== null)];
    this.slots = slots(alone.map(({ key }) => key), folded.map(({ key }) => key));
    const by = scaleBy(colour, rows.flatMap((row) => row.runs), configs, groups);
    this.colours = new Map(
      by ? drawn.map(({ key, runs }) => [key, by.scale.colour(together(runs.map(by.value)))]) : [],
    );
    this.note = note;
    fill(this.choice, colourField(colour, `by ${groups || "run"}`, offered, this.onChange));
    fill(this.key, by && keyOf(by.scale));
    this.patient ||= performance.now() + SETTLE_MS;
    if (!settled && performance.now() < this.patient) {
      setTimeout(this.onChange, SETTLE_MS);
      return false;
    }
    const all = drawn.flatMap((row) => row.runs.map((run) => ({ run, row, hidden: this.hidden.has(row.key) })));
    const label = labels(all.flatMap(({ run, row, hidden }) => (hidden || row.name !== null ? [] : [run])));
    const now = all.map(({ run, row, hidden }) => [
      run.id, label(run), row.name, this.colours.get(row.key), hidden, run.attempt, run.ended_at !== null,
    ].join(" ")).join();
    if (now === this.drawn) return false;
    this.drawn = now;
    const runs = all.map(({ run }) => run);
    this.board.bar.offer(runs);
    this.board.means = drawn.some(({ name }) => name !== null) ? "runs" : null;
    this.board.setRuns(all.map(({ run, row, hidden }) => boardRun(run, {
      label: label(run), group: row.name, hidden, stroke: this.strokeOf(row.key),
    })));
    if (runs.length) this.learn();
    else this.board.setMetrics([]);
    return true;
  }

  /** New points have come. @param {string} id */
  tick(id) {
    if (this.rows.some(({ runs }) => runs.some((run) => run.id === id))) this.board.announce(id);
  }

  /** @param {string} key of a row */
  strokeOf(key) {
    const own = this.colours.get(key);
    return own ? { colour: own, dash: /** @type {const} */ ("solid") } : stroke(this.slots.get(key) ?? 0);
  }

  /** Return the mark of a row's line, which hides it; null if it has none. @param {string} key @param {string} name */
  eye(key, name) {
    const isDrawn = this.rows.some((row) => row.key === key);
    return isDrawn ? eye(this.hidden, key, name, swatch(this.strokeOf(key)), () => this.onChange()) : null;
  }

  /** Take the metrics of all runs that are drawn. */
  async #learn() {
    try {
      const run = this.rows.flatMap(({ runs }) => runs.map(({ id }) => id)).slice(0, BATCH);
      if (!run.length) return;
      const asked = this.drawn;
      const { metric_names: names } = await get("/values", { run, names: true, configs: false });
      if (asked === this.drawn) this.board.setMetrics(names);
    } catch (error) {
      this.board.failed(error);
    }
  }

  destroy() {
    this.board.destroy();
  }
}

/** A wider list is the whole table. */
const WHOLE_PX = 760;
/** What select box, mark, name and state take of a rail, and a column more. */
const [NAMED_PX, COLUMN_PX] = [232, 60];

/**
 * Return how many columns the list beside the charts has room for, besides name and state; Infinity: all, it scrolls.
 *
 * @param {HTMLElement} split
 * @param {() => void} [onChange] called after the edge between the two was moved, by drag or arrow keys
 */
export function edgeOf(split, onChange) {
  const edge = /** @type {HTMLElement} */ (split.querySelector("[role=separator]"));
  const width = () => (innerWidth < 1000 ? WHOLE_PX : split.offsetWidth && edge.offsetLeft - split.offsetLeft);
  if (onChange) {
    const set = (/** @type {number} */ px) => {
      const next = Math.round(Math.max(280, Math.min(px, split.offsetWidth - 320)));
      split.style.setProperty("--rail", `${next}px`);
      edge.setAttribute("aria-valuenow", String(next));
      memory.set("rail", next);
      onChange();
    };
    set(memory.get("rail", 420));
    edge.onpointerdown = (event) => edge.setPointerCapture(event.pointerId);
    edge.onpointermove = ({ pointerId, clientX }) => (
      edge.hasPointerCapture(pointerId) && set(clientX - split.offsetLeft - 12)
    );
    edge.onkeydown = ({ key }) => {
      if (key === "ArrowLeft" || key === "ArrowRight") set(width() + (key === "ArrowLeft" ? -40 : 40));
    };
    edge.ondblclick = () => set(width() >= WHOLE_PX ? 420 : WHOLE_PX);
  }
  return width() >= WHOLE_PX ? Infinity : Math.max(1, Math.floor((width() - NAMED_PX) / COLUMN_PX));
}

/** Return the value of a group: the mean of numbers, or what all have in common. @param {any[]} values */
function together(values) {
  const numbers = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (numbers.length) return numbers.reduce((a, b) => a + b, 0) / numbers.length;
  return values.every((value) => Object.is(value, values[0])) ? values[0] : null;
}
