/** The curves of a node, under its strip and on its axis: what its agent reported of GPUs, CPUs and RAM. */

import { get } from "./api.js";
import { Chart } from "./charts/chart.js";
import { indexAt } from "./charts/points.js";
import { along, stroke } from "./colour.js";
import { h, mount } from "./dom.js";
import { clock, duration, metric } from "./format.js";
/** @import { NodeFigures } from "./types.js" */
/** @import { Past } from "./strips.js" */

/** More lines would hide each other: their mean is drawn, between the lowest and the highest. */
const MOST = 8;
const CHARTS = [
  "system/gpu_utilization", "system/gpu_memory_used_bytes", "system/cpu_utilization", "system/ram_used_bytes",
];

export class NodeCurves {
  /** @param {HTMLElement} box @param {string} node @param {(text: string, at: number) => void} say */
  constructor(box, node, say) {
    this.node = node;
    this.element = h("div.node-curves");
    mount(box, this.element);
    /** @type {Past | null} */
    this.past = null;
    const at = (/** @type {import("./charts/lines.js").Place | null} */ place, /** @type {Chart} */ chart) => {
      if (!place) return;
      const values = chart.lines.map(({ label, curve: { x, y } }) =>
        `${label} ${metric(chart.name, y[indexAt(x, place.x)])}`);
      say(`${node}, ${clock(place.x)}: ${values.join(", ")}`, place.x);
    };
    this.charts = CHARTS.map((name) => {
      const own = (/** @type {import("./charts/toolbar.js").Own} */ changed) => {
        chart.setOwn(changed);
        this.draw();
      };
      const chart = new Chart(name, { onHover: at, onWalk: at, onOwn: own });
      chart.setOwn(name.endsWith("utilization") ? { range: [0, 1] } : {});
      return chart;
    });
  }

  /** @param {Past | null} past whose axis they have */
  async load(past) {
    if (!past) return;
    const [from, to] = [past.history.began, past.history.ended];
    const figures = await get("/cluster/figures", { node: this.node, since: from });
    this.past = past;
    this.lines = CHARTS.map((name) => linesOf(name, figures, to));
    const shown = this.charts.filter((_, i) => this.lines?.[i].length);
    mount(this.element, shown.map(({ element }) => element), h("p.hint", {}, shown.length
      ? `Means of ${duration(figures.part_s)} of what the node's agent read every few seconds, by NVML and psutil.`
      : "Nothing is recorded yet: the server keeps the mean of each minute, for seven days."));
    this.draw();
  }

  draw() {
    const { past, lines } = this;
    if (!past || !lines) return;
    const span = /** @type {[number, number]} */ ([past.history.began, past.last]);
    this.charts.forEach((chart, i) => lines[i].length && chart.draw(
      lines[i], { x: "clock", logx: false, logy: false, band: true, span }, null,
    ));
  }

  /** Show the values at a time; null for the newest. @param {number | null} at */
  move(at) {
    for (const chart of this.charts) chart.reading(at === null ? null : { step: at, x: at, run: null });
  }
}

/**
 * @param {string} chart a name of a metric; system/gpu_... has a line for each GPU
 * @param {NodeFigures} found
 * @param {number} last no point is later, in seconds since the epoch
 * @returns {import("./charts/lines.js").Line[]}
 */
export function linesOf(chart, { began, part_s: part, figures }, last) {
  const known = Object.entries(figures).filter(([name]) => name.replace(/gpu\d+/, "gpu") === chart);
  const line = (
    /** @type {string} */ name, /** @type {string} */ colour, /** @type {(number | null)[]} */ values,
    low = /** @type {number[] | null} */ (null), high = /** @type {number[] | null} */ (null),
  ) => {
    // The newest minute is not over: the last parts may have no value yet.
    const end = values.findLastIndex((value) => value !== null) + 1;
    const shown = values.length - end < 3 ? values.slice(0, end) : values;
    const x = shown.map((_, i) => Math.min(last, began + (i + 0.5) * part));
    // Where nothing was reported there is a gap, and no value.
    const y = /** @type {number[]} */ (shown.map((value) => value ?? undefined));
    const curve = { step: x, x, y, low, high, raw: null, superseded: [] };
    const label = name.replace(/^system\/(gpu(\d+)|[a-z]+).*/, (_, of, gpu) => (gpu ? `GPU ${gpu}` : of.toUpperCase()));
    return {
      run: "", label, metric: known.length > 1 ? name : undefined, colour, dash: /** @type {const} */ ("solid"), curve,
    };
  };
  if (known.length <= MOST) {
    const colour = (/** @type {number} */ i) => (known.length > 4 ? along(i / (known.length - 1)) : stroke(i).colour);
    return known.map(([name, values], i) => line(name, colour(i), values));
  }
  const of = (/** @type {(values: number[]) => number} */ act) => known[0][1].map((_, i) => {
    const values = known.flatMap(([, one]) => one[i] ?? []);
    return values.length ? act(values) : NaN;
  });
  const mean = of((values) => values.reduce((a, b) => a + b) / values.length).map((v) => (Number.isNaN(v) ? null : v));
  const [low, high] = [of((values) => Math.min(...values)), of((values) => Math.max(...values))];
  return [line(`mean of ${known.length} GPUs`, stroke(0).colour, mean, low, high)];
}
