/**
 * The charts of one or more runs, grouped by metric prefix. Pinned charts are first; all share a cursor.
 *
 * Fetches and draws visible charts only. After the first fetch, fetches new points only.
 */

import { fill, h, throttled } from "../dom.js";
import { metric as format } from "../format.js";
import { showFailure } from "../notices.js";
import { memory } from "../urlstate.js";
import { Chart } from "./chart.js";
import { Feed } from "./feed.js";
import { bySeeds } from "./seeds.js";

/**
 * @typedef {object} BoardRun
 * @property {string} id
 * @property {string} label
 * @property {() => {colour: string, dash: "solid" | "dash"}} stroke called for each drawing, because the theme may change
 * @property {boolean} [hidden]
 * @property {number | null} [flopsPerToken]
 * @property {boolean} [cut] whether it was pruned
 * @property {string | null} [group] the key shared by runs that differ only in their seed
 * @property {string[]} [metrics] metrics that the run is known to have
 */

const TICK_MS = 1000;
const PINNED = ["train/loss", "val/loss", "tokens_per_s"];

/**
 * Return the group of a metric.
 *
 * @param {string} name
 */
export function groupOf(name) {
  const slash = name.indexOf("/");
  if (slash > 0) return name.slice(0, slash);
  return /tokens_per_s|_s$|mfu/.test(name) ? "speed" : "other";
}

/** @type {Record<string, number>} */
const ORDER = { train: 0, val: 1, speed: 2, memory: 3 };

export class Board {
  /**
   * @param {HTMLElement} place
   * @param {BoardRun[]} runs
   * @param {import("./toolbar.js").View} view
   * @param {{onZoom: (range: [number, number | null] | null) => void,
   *   pins?: string, open?: string[]}} options `open`: prefixes that are open at first; all by default
   */
  constructor(place, runs, view, options) {
    this.place = place;
    this.view = view;
    this.options = options;
    /** @type {BoardRun[]} */
    this.runs = runs;
    /** @type {Map<string, Feed>} */
    this.feeds = new Map();
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    /** @type {import("./chart.js").Marks | null} */
    this.marks = null;
    /** @type {string[]} */
    this.names = [];
    /** Whether runs that differ only in their seed are drawn as one curve. */
    this.meanOfSeeds = false;
    this.trouble = h("div");
    this.tip = h("div.tip", { hidden: true });
    this.pins = memory.get(options.pins ?? "pins", PINNED);
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "120px" });
    this.tick = throttled(() => this.#update(), TICK_MS);
    this.onTheme = () => this.redraw();
    document.addEventListener("lehr:theme", this.onTheme);
    this.resizes = new ResizeObserver(throttled(async () => this.redraw(), 200));
    this.resizes.observe(place);
  }

  destroy() {
    this.observer.disconnect();
    this.resizes.disconnect();
    document.removeEventListener("lehr:theme", this.onTheme);
    for (const chart of this.charts.values()) {
      chart.visible = false;
      chart.destroy();
    }
    this.charts.clear();
  }

  /** @param {BoardRun[]} runs */
  setRuns(runs) {
    this.runs = runs;
    this.redraw();
    this.tick();
  }

  /** @param {import("./chart.js").Marks} marks */
  setMarks(marks) {
    this.marks = marks;
    this.redraw();
  }

  /** @param {string[]} names all metrics */
  setMetrics(names) {
    const sorted = [...names].sort();
    if (sorted.join() === this.names.join()) return;
    this.names = sorted;
    this.#arrange();
  }

  /**
   * Show an error above the charts until a fetch succeeds. The drawn curves stay.
   *
   * @param {unknown} error
   */
  failed(error) {
    showFailure(this.trouble, error);
    if (!this.trouble.isConnected) this.place.prepend(this.trouble);
  }

  /** Fetch all points again, after a change of axis, smoothing, range or attempt. */
  reload() {
    for (const feed of this.feeds.values()) feed.reset();
    this.place.querySelectorAll(".charts").forEach((element) => element.classList.toggle("wide", this.view.wide));
    this.tick();
  }

  redraw() {
    this.place.querySelectorAll(".charts").forEach((element) => element.classList.toggle("wide", this.view.wide));
    for (const chart of this.charts.values()) if (chart.visible) this.#draw(chart);
  }

  #arrange() {
    const pinned = this.pins.filter((name) => this.names.includes(name));
    /** @type {Map<string, string[]>} */
    const groups = new Map();
    for (const name of this.names) {
      if (pinned.includes(name)) continue;
      groups.set(groupOf(name), [...(groups.get(groupOf(name)) ?? []), name]);
    }
    for (const name of this.names) {
      if (this.charts.has(name)) continue;
      const chart = new Chart(name, {
        onHover: (step, at) => this.#hover(step, at),
        onZoom: this.options.onZoom,
        onPin: () => this.#pin(name),
      });
      this.charts.set(name, chart);
    }
    const charts = (/** @type {string[]} */ names) =>
      h(`div.charts${this.view.wide ? ".wide" : ""}`, {}, names.map((name) => this.charts.get(name)?.element));
    const closed = new Set(memory.get("closed-groups", /** @type {string[]} */ ([])));
    const ordered = [...groups].sort(([a], [b]) => (ORDER[a] ?? 9) - (ORDER[b] ?? 9) || a.localeCompare(b));
    this.observer.disconnect();
    fill(
      this.place,
      this.trouble,
      pinned.length > 0 && charts(pinned),
      ordered.map(([group, names]) => {
        const open = this.options.open ? this.options.open.includes(group) : !closed.has(group);
        return h(
          "details.group",
          { open, ontoggle: (/** @type {Event} */ event) => this.#remember(group, /** @type {any} */ (event.target).open) },
          h("summary", {}, group, " ", h("span.count", {}, `${names.length}`)),
          charts(names),
        );
      }),
    );
    for (const [name, chart] of this.charts) {
      chart.setPinned(pinned.includes(name));
      this.observer.observe(chart.element);
    }
  }

  /**
   * @param {string} group
   * @param {boolean} open
   */
  #remember(group, open) {
    const closed = new Set(memory.get("closed-groups", /** @type {string[]} */ ([])));
    if (open) closed.delete(group);
    else closed.add(group);
    memory.set("closed-groups", [...closed]);
  }

  /** @param {string} name */
  #pin(name) {
    this.pins = this.pins.includes(name) ? this.pins.filter((/** @type {string} */ one) => one !== name) : [...this.pins, name];
    memory.set(this.options.pins ?? "pins", this.pins);
    this.#arrange();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #seen(entries) {
    for (const entry of entries) {
      const chart = this.charts.get(/** @type {HTMLElement} */ (entry.target).dataset.metric ?? "");
      if (chart) chart.visible = entry.isIntersecting;
    }
    this.tick();
  }

  async #update() {
    if (document.hidden) return;
    const names = [...this.charts.values()].filter((chart) => chart.visible).map((chart) => chart.name);
    if (!names.length) return;
    const reading = { x: this.view.x, smooth: this.view.smooth, old: this.view.old, range: this.view.range };
    try {
      await Promise.all(
        this.runs
          .filter((run) => !run.hidden)
          .map(async (run) => {
            let feed = this.feeds.get(run.id);
            if (!feed) {
              feed = new Feed(run.id, run.metrics, run.flopsPerToken);
              this.feeds.set(run.id, feed);
            }
            await feed.update(names, reading);
          }),
      );
      this.trouble.replaceChildren();
    } catch (error) {
      this.failed(error);
    }
    for (const name of names) {
      // The list is empty if the tab was closed in the meantime.
      const chart = this.charts.get(name);
      if (chart) this.#draw(chart);
    }
  }

  /** @param {Chart} chart */
  #draw(chart) {
    /** @type {import("./chart.js").Line[]} */
    let lines = [];
    for (const run of this.runs) {
      const curve = this.feeds.get(run.id)?.curves.get(chart.name);
      if (curve && !run.hidden) lines.push({ run: run.id, label: run.label, ...run.stroke(), cut: run.cut, curve });
    }
    if (this.meanOfSeeds) {
      const groups = new Map(this.runs.map((run) => [run.id, run.group ?? null]));
      lines = bySeeds(lines, (line) => groups.get(line.run) ?? null);
    }
    const fetched = this.runs.some((run) => run.hidden || this.view.x === "flops" || this.feeds.get(run.id)?.curves.has(chart.name));
    if (!fetched) return;
    chart.draw(lines, this.view, this.runs.length === 1 ? this.marks : null).catch((error) => this.failed(error));
  }

  /**
   * @param {number | null} step
   * @param {Chart} at
   */
  #hover(step, at) {
    for (const chart of this.charts.values()) if (chart.visible) chart.reading(step);
    const many = step !== null && this.runs.length > 1;
    this.tip.hidden = !many;
    if (!many || step === null) return;
    fill(
      this.tip,
      at.values(step).map(({ line, value }) =>
        h("div", {}, h("i.tip-key", { vars: { "--key": line.colour } }), h("b", {}, format(at.name, value)), ` ${line.label}`),
      ),
    );
    if (this.tip.parentElement !== at.plot) at.plot.append(this.tip);
    // Place the list on the side of the plot opposite to the pointer.
    const right = at.cursor.getBoundingClientRect().left - at.plot.getBoundingClientRect().left > at.plot.clientWidth / 2;
    this.tip.classList.toggle("left", right);
  }
}
