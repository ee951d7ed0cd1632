/**
 * The charts of one or more runs, grouped by metric prefix. Pinned charts are first; all share a cursor.
 *
 * Fetches and draws visible charts only. After the first fetch, fetches new points only.
 */

import { h, mount, throttled } from "../dom.js";
import { keep } from "../patch.js";
import { showFailure } from "../notices.js";
import { memory, read, write } from "../urlstate.js";
import { Chart } from "./chart.js";
import { computed, isExpression, parseExpression } from "./expression.js";
import { Feed } from "./feed.js";
import { ownFromAddress, ownToAddress } from "./menu.js";
import { Search } from "./search.js";
import { showTip } from "./tip.js";
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
 * @property {boolean} [ended] whether it has no more points to come
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
   *   onLine?: (run: string | null) => void, pins?: string, open?: string[]}} options `open`: prefixes that are open at first; all by default
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
    /** @type {Map<string, {element: HTMLElement, count: HTMLElement, charts: HTMLElement}>} */
    this.groups = new Map();
    this.pinned = keep(h("div.charts"));
    /** @type {{place: import("./chart.js").Place, at: Chart} | null} where the pointer is */
    this.hovered = null;
    /** @type {{place: import("./chart.js").Place, at: Chart} | null} where the cursor is held */
    this.held = null;
    /** Whether runs that differ only in their seed are drawn as one curve. */
    this.meanOfSeeds = false;
    this.trouble = h("div");
    /** What single charts have for themselves, by name. */
    this.own = ownFromAddress(read("chart"));
    this.search = new Search(() => this.#arrange());
    this.tip = h("div.tip", { hidden: true });
    this.pins = memory.get(options.pins ?? "pins", PINNED);
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "120px" });
    this.tick = throttled(() => this.#update(), TICK_MS);
    this.onTheme = () => this.redraw();
    this.onEscape = (/** @type {KeyboardEvent} */ event) => event.key === "Escape" && this.release();
    document.addEventListener("keydown", this.onEscape);
    document.addEventListener("lehr:theme", this.onTheme);
    this.resizes = new ResizeObserver(throttled(async () => this.redraw(), 200));
    this.resizes.observe(place);
  }

  destroy() {
    this.observer.disconnect();
    this.resizes.disconnect();
    document.removeEventListener("lehr:theme", this.onTheme);
    document.removeEventListener("keydown", this.onEscape);
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
    const all = [...this.search.expressions, ...this.names];
    const shown = all.filter((name) => this.search.matches(name));
    const pinned = [...this.search.expressions, ...this.pins].filter((name) => shown.includes(name));
    this.search.count(shown.length, all.length);
    /** @type {Map<string, string[]>} */
    const groups = new Map();
    for (const name of shown) {
      if (pinned.includes(name)) continue;
      groups.set(groupOf(name), [...(groups.get(groupOf(name)) ?? []), name]);
    }
    for (const name of all) {
      if (this.charts.has(name)) continue;
      const chart = new Chart(name, {
        onHover: (at, on) => this.#hover(at, on),
        onHold: (at, on) => this.#hold(at, on),
        onZoom: this.options.onZoom,
        onPin: () => this.#pin(name),
        onOwn: (own) => this.#setOwn(name, own),
      });
      chart.setOwn(this.own.get(name) ?? {});
      this.charts.set(name, chart);
    }
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const elements = (/** @type {string[]} */ names) => names.map((name) => this.charts.get(name)?.element);
    const ordered = [...groups].sort(([a], [b]) => (ORDER[a] ?? 9) - (ORDER[b] ?? 9) || a.localeCompare(b));
    this.observer.disconnect();
    mount(this.pinned, elements(pinned));
    mount(
      this.place,
      this.trouble,
      this.search.element,
      pinned.length > 0 && this.pinned,
      ordered.map(([name, names]) => {
        const group = this.#group(name);
        group.count.textContent = String(names.length);
        mount(group.charts, elements(names));
        return group.element;
      }),
    );
    this.place.querySelectorAll(".charts").forEach((element) => element.classList.toggle("wide", this.view.wide));
    // A chart that has moved to another group takes the focus of its button with it.
    if (focused !== document.activeElement && this.place.contains(focused)) focused?.focus({ preventScroll: true });
    for (const [name, chart] of this.charts) {
      chart.setPinned(pinned.includes(name));
      this.observer.observe(chart.element);
    }
  }

  /** @param {string} name */
  #group(name) {
    const known = this.groups.get(name);
    if (known) return known;
    const closed = new Set(memory.get("closed-groups", /** @type {string[]} */ ([])));
    const open = this.options.open ? this.options.open.includes(name) : !closed.has(name);
    const count = h("span.count");
    const charts = h("div.charts");
    const ontoggle = (/** @type {Event} */ event) => this.#remember(name, /** @type {any} */ (event.target).open);
    const group = { count, charts, element: h("details.group", { open, ontoggle }, h("summary", {}, name, " ", count), charts) };
    this.groups.set(name, group);
    return group;
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

  /**
   * @param {string} name
   * @param {import("./menu.js").Own} own
   */
  #setOwn(name, own) {
    this.own.set(name, own);
    write({ chart: ownToAddress(this.own) });
    const chart = this.charts.get(name);
    chart?.setOwn(own);
    if (chart?.visible) this.#draw(chart);
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
    const drawn = [...this.charts.values()].filter((chart) => chart.visible).map((chart) => chart.name);
    const names = [...new Set(drawn.flatMap((name) => (isExpression(name) ? parseExpression(name).metrics : [name])))];
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
            // Of a run that has ended, points are fetched once.
            if (run.ended && names.every((name) => feed.curves.has(name) || (feed.asked > 0 && !feed.known.has(name)))) return;
            await feed.update(names, reading);
          }),
      );
      this.trouble.replaceChildren();
    } catch (error) {
      this.failed(error);
    }
    for (const name of drawn) {
      // The list is empty if the tab was closed in the meantime.
      const chart = this.charts.get(name);
      if (chart) this.#draw(chart);
    }
  }

  /** Return the first and last x of all curves: one range for all charts, so that their cursors are in line. */
  #span() {
    let first = Infinity;
    let last = -Infinity;
    for (const run of this.runs) {
      if (run.hidden) continue;
      for (const { x } of this.feeds.get(run.id)?.curves.values() ?? []) {
        if (!x.length) continue;
        // A logarithmic axis begins with the first positive value.
        first = Math.min(first, this.view.logx ? (x.find((one) => one > 0) ?? Infinity) : x[0]);
        last = Math.max(last, x[x.length - 1]);
      }
    }
    return first < last ? /** @type {[number, number]} */ ([first, last]) : null;
  }

  /**
   * @param {string} run
   * @param {string} name of a metric, or an expression
   */
  #curve(run, name) {
    const curves = this.feeds.get(run)?.curves;
    if (!curves || !isExpression(name)) return curves?.get(name);
    return computed(parseExpression(name), (one) => curves.get(one));
  }

  /** @param {Chart} chart */
  #draw(chart) {
    /** @type {import("./chart.js").Line[]} */
    let lines = [];
    for (const run of this.runs) {
      const curve = this.#curve(run.id, chart.name);
      if (curve && !run.hidden) lines.push({ run: run.id, label: run.label, ...run.stroke(), cut: run.cut, curve });
    }
    if (this.meanOfSeeds) {
      const groups = new Map(this.runs.map((run) => [run.id, run.group ?? null]));
      lines = bySeeds(lines, (line) => groups.get(line.run) ?? null);
    }
    const fetched = this.runs.some((run) => run.hidden || this.view.x === "flops" || isExpression(chart.name) || this.feeds.get(run.id)?.curves.has(chart.name));
    if (!fetched) return;
    chart
      .draw(lines, { ...this.view, span: this.#span() }, this.runs.length === 1 ? this.marks : null)
      .then(() => this.#cursor?.at === chart && this.#showTip())
      .catch((error) => this.failed(error));
  }

  /** The place that all cursors show: the held one, or that of the pointer. */
  get #cursor() {
    return this.held ?? this.hovered;
  }

  /**
   * @param {import("./chart.js").Place | null} place
   * @param {Chart} at
   */
  #hover(place, at) {
    this.hovered = place && { place, at };
    if (!this.held) this.#showCursor();
  }

  /**
   * Hold the cursor where it is, so that it stays when the pointer leaves; a second time, let it go.
   *
   * @param {import("./chart.js").Place} place
   * @param {Chart} at
   */
  #hold(place, at) {
    this.held = this.held?.place.step === place.step ? null : { place, at };
    this.#showCursor();
  }

  /** Let the held cursor go. @returns {boolean} whether there was one */
  release() {
    const was = this.held !== null;
    this.held = null;
    if (was) this.#showCursor();
    return was;
  }

  /**
   * Draw the lines of a run bold in all charts.
   *
   * @param {string | null} run
   */
  light(run) {
    for (const chart of this.charts.values()) if (chart.visible) chart.near(run ?? chart.at?.run ?? null);
  }

  #showCursor() {
    const cursor = this.#cursor;
    const place = cursor?.place ?? null;
    for (const chart of this.charts.values()) if (chart.visible) chart.reading(place);
    this.place.classList.toggle("held", this.held !== null);
    this.options.onLine?.(place?.run ?? null);
    this.#showTip();
  }

  #showTip() {
    const cursor = this.#cursor;
    if (!cursor) {
      this.tip.hidden = true;
      return;
    }
    showTip(this.tip, cursor.place, cursor.at, this.runs.length > 1);
  }
}
