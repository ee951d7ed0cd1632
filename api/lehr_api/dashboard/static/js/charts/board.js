/**
 * The charts of one or more runs, grouped by metric prefix. Pinned charts are first; all share a cursor.
 * Fetches and draws visible charts only. After the first fetch, fetches new points only.
 */

import { h, mount, throttled } from "../dom.js";
import { shortcut } from "../keys.js";
import { showFailure } from "../notices.js";
import { keep } from "../patch.js";
import { memory, read, write } from "../urlstate.js";
import { Chart } from "./chart.js";
import { Frames } from "./drawing.js";
import { isComputed, metricsIn, spread } from "./expression.js";
import { feedOf, fetchCurves } from "./feed.js";
import { alike, curveOf, gathered, linesOf, roomy, spanOf } from "./lines.js";
import { byNumber, grouped, metricGroups } from "./metric_groups.js";
import { indexAt } from "./points.js";
import { Search } from "./search.js";
import { ownFromAddress, ownToAddress, toolbar, viewFromAddress } from "./toolbar.js";
/** @import { BoardRun } from "./lines.js" */

/** The pause between two updates of a run's page, and of one with the curves of several: as of their tables. */
const [TICK_MS, SEVERAL_MS] = [1000, 2000];
/** The prefixes that are open at first on a page of several runs. */
const OPEN = ["train", "val"];

/** Unless a user has chosen; where no run has train/loss, its `loss` too. */
const PINNED = ["train/loss", "val/loss", "tokens_per_s"];

export class Board {
  /**
   * @param {HTMLElement} place
   * @param {BoardRun[]} runs
   * @param {{onLine?: (run: string | null) => void, onData?: () => void, pins?: string, charts?: string,
   *   onLog?: (step: number) => void, tools?: HTMLElement[], several?: boolean}} options
   *   `charts`: those to begin with, of several metrics; `onLog`: shows the log of its run; `tools`: of the page, in
   *   the toolbar; `onData`: called when another axis, range or smoothing was chosen; `several`: whether it has the
   *   curves of several runs, without those of earlier attempts
   */
  constructor(place, runs, options = {}) {
    this.place = place;
    this.view = viewFromAddress();
    this.left = new AbortController();
    this.options = options;
    this.search = new Search(() => this.#arrange(), options.charts);
    const { several = false, tools = [] } = options;
    this.bar = toolbar(this.view, (kind) => {
      if (kind === "look") this.redraw();
      else {
        this.reload();
        options.onData?.();
      }
    }, [...tools, this.search.element], several, this.left.signal);
    this.view.old &&= !several;
    /** @type {BoardRun[]} */
    this.runs = runs;
    /** Those that have lines of their own: groups, and the runs in none; without hidden ones. */
    this.gathered = runs;
    /** @type {Map<string, import("./feed.js").Feed>} */
    this.feeds = new Map();
    /** The runs that forks come from, by the fork. @type {Map<string, string[]>} */
    this.ancestors = new Map();
    /** @type {Map<string, Chart>} */
    this.charts = new Map();
    /** The first and last x of all charts. @type {[number, number] | null} */
    this.span = null;
    /** What each chart shows; nothing of those to be drawn anew. @type {WeakMap<Chart, import("./lines.js").Drawn>} */
    this.drawn = new WeakMap();
    /** @type {import("./traces.js").Marks | null} */
    this.marks = null;
    /** @type {string[]} */
    this.names = [];
    this.groupOf = metricGroups(several ? OPEN : undefined);
    this.pinned = keep(h("div.charts.pinned"));
    /** @type {{place: import("./lines.js").Place, at: Chart} | null} where the pointer is */
    this.hovered = null;
    /** @type {{place: import("./lines.js").Place, at: Chart} | null} where the cursor is held */
    this.held = null;
    /** What the runs of a group are that is one curve; null: each run is. @type {"seeds" | "runs" | null} */
    this.means = null;
    /** What the run is compared with, faint: neither the axis nor the values of the head are its. @type {BoardRun[]} */
    this.faint = [];
    /** The run whose line stands for a group, by member. @type {Map<string, string>} */
    this.drawnAs = new Map();
    /** The run whose lines are bold in all charts, whatever the cursor is at. @type {string | null} */
    this.lit = null;
    this.trouble = h("div");
    this.own = ownFromAddress(read("chart"));
    /** The step that the cursor goes to once there are points. @type {number | null} */
    this.sought = read("at") === null ? null : Number(read("at"));
    this.tip = h("div.tip", { hidden: true });
    this.moment = h("div.moment", { hidden: true, "aria-live": "polite" });
    this.pins = read("pins")?.split(",") ?? memory.get(options.pins ?? "pins", PINNED);
    // Each chart has these keys for itself: here they are for the list.
    shortcut("← → + -", "on a chart: move its cursor, zoom in, show all steps", () => undefined);
    this.observer = new IntersectionObserver((entries) => this.#seen(entries), { rootMargin: "120px" });
    this.frames = new Frames((chart) => chart.visible && this.#draw(chart), (chart) => this.#redraw(chart));
    this.tick = throttled(async () => {
      if (document.hidden) return;
      await this.fetch();
      this.drawNews();
    }, several ? SEVERAL_MS : TICK_MS);
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.release(), this.left);
  }

  destroy() {
    this.observer.disconnect();
    this.frames.destroy();
    this.left.abort();
    for (const { element } of this.charts.values()) element.remove();
    this.charts.clear();
  }

  /** @param {BoardRun[]} runs */
  setRuns(runs) {
    const sign = (/** @type {BoardRun} */ { id, members }) => `${id} ${members}`;
    const drawn = new Set(this.gathered.map(sign));
    this.runs = runs;
    this.gathered = gathered(runs.filter((run) => !run.hidden), this.means);
    this.drawnAs = new Map(this.gathered.flatMap(({ id, members = [id] }) => members.map((one) => [one, id])));
    this.redraw();
    this.tick(this.gathered.some((run) => !drawn.has(sign(run))));
  }

  /** @param {import("./traces.js").Marks} marks */
  setMarks(marks) {
    this.marks = marks;
    this.redraw();
  }

  /** @param {string[]} names all metrics */
  setMetrics(names) {
    const sorted = [...names].sort(byNumber);
    if (sorted.join() === this.names.join()) return;
    this.names = sorted;
    if (this.pins === PINNED && !names.includes("train/loss")) this.pins = ["loss", ...PINNED];
    this.#arrange();
  }

  /** Show an error until a fetch succeeds. The drawn curves stay. @param {unknown} error */
  failed(error) {
    showFailure(this.trouble, error);
    if (!this.trouble.isConnected) this.place.prepend(this.trouble);
  }

  /** @param {[number, number | null] | null} range of steps */
  #zoom(range) {
    this.view.range = range;
    this.bar.show();
    this.reload();
  }

  /** Fetch all points again, after a change of axis, smoothing, range or attempt. */
  reload() {
    for (const feed of this.feeds.values()) feed.reset();
    this.#widen();
    this.tick(true);
  }

  /** Fetch the new points of a run. @param {string} id */
  announce(id) {
    this.expect(id);
    this.tick();
  }

  /** Let the next fetch include the new points of a run. @param {string} id */
  expect(id) {
    for (const feed of this.feeds.values()) if (feed.ref.includes(id)) feed.final.clear();
  }

  #widen() {
    this.place.querySelectorAll(".charts").forEach((element) => element.classList.toggle("wide", this.view.wide));
  }

  redraw() {
    // Charts out of sight are drawn when they come back, in their new colours.
    this.drawn = new WeakMap();
    this.#widen();
    this.drawNews();
  }

  #arrange() {
    this.search.names = this.names;
    const all = [...this.search.expressions, ...this.names];
    const shown = this.search.shown();
    const pinned = [...this.search.expressions, ...this.pins].filter((name) => shown.includes(name));
    for (const name of all) {
      if (this.charts.has(name)) continue;
      const chart = new Chart(name, {
        onHover: (at, on) => this.#hover(at, on),
        onHold: (at, on) => (this.held?.place.step === at.step ? this.release() : this.#hold(at, on)),
        onWalk: (at, on) => this.#hold(at, on),
        onZoom: (range) => this.#zoom(range),
        onPin: () => this.#pin(name),
        onOwn: (own) => this.#setOwn(name, own),
      });
      this.frames.watch(chart);
      chart.setOwn(this.own.get(name) ?? {});
      this.charts.set(name, chart);
    }
    const focused = /** @type {HTMLElement | null} */ (document.activeElement);
    const elements = (/** @type {string[]} */ names) => names.map((name) => this.charts.get(name)?.element);
    this.observer.disconnect();
    mount(this.pinned, elements(pinned));
    mount(
      this.place,
      this.trouble,
      pinned.length > 0 && this.pinned,
      grouped(shown.filter((name) => !pinned.includes(name))).map(([name, names]) => {
        const group = this.groupOf(name);
        group.count.textContent = String(names.length);
        mount(group.charts, elements(names));
        return group.element;
      }),
    );
    this.#widen();
    // A chart that has moved to another group takes the focus of its button with it.
    if (focused !== document.activeElement && this.place.contains(focused)) focused?.focus({ preventScroll: true });
    for (const [name, chart] of this.charts) {
      chart.setPinned(pinned.includes(name));
      this.observer.observe(chart.element);
    }
  }

  /** @param {string} name @param {import("./toolbar.js").Own} own */
  #setOwn(name, own) {
    this.own.set(name, own);
    write({ chart: ownToAddress(this.own) });
    const chart = this.charts.get(name);
    chart?.setOwn(own);
    if (chart) this.#redraw(chart);
  }

  /** @param {Chart} chart which looks different now */
  #redraw(chart) {
    this.drawn.delete(chart);
    if (chart.visible) this.frames.add([chart]);
  }

  /** @param {string} name */
  #pin(name) {
    this.pins = this.pins.includes(name)
      ? this.pins.filter((/** @type {string} */ one) => one !== name)
      : [...this.pins, name];
    memory.set(this.options.pins ?? "pins", this.pins);
    write({ pins: read("pins") && this.pins.join(",") });
    this.#arrange();
  }

  /** @param {IntersectionObserverEntry[]} entries */
  #seen(entries) {
    let appeared = false;
    for (const entry of entries) {
      const chart = this.charts.get(/** @type {HTMLElement} */ (entry.target).dataset.metric ?? "");
      if (!chart) continue;
      appeared ||= entry.isIntersecting && !chart.visible;
      chart.visible = entry.isIntersecting;
      chart.top = entry.boundingClientRect.top + scrollY;
    }
    this.tick(appeared);
  }

  /** Fetch what is missing of the curves of the visible charts. */
  async fetch() {
    const names = [...new Set(this.#visible.flatMap(({ name }) => metricsIn(spread(name, this.names))))];
    if (!names.length) return;
    try {
      await fetchCurves(this, [...this.gathered, ...this.faint], names, { ...this.view });
      this.trouble.replaceChildren();
    } catch (error) {
      this.failed(error);
    }
  }

  /** Draw those of the visible charts that would look different. */
  drawNews() {
    this.span = this.#span();
    this.frames.add(this.#visible);
  }

  get #visible() { return [...this.charts.values()].filter((chart) => chart.visible); }

  /** Return one range of x for all charts, so that their cursors are in line. */
  #span() {
    const names = (/** @type {BoardRun} */ run) => [...(this.feeds.get(feedOf(run))?.curves.keys() ?? [])];
    const xs = this.gathered.flatMap((run) => names(run).map((name) => this.#curve(run, name)?.x ?? []));
    const found = spanOf(xs, this.view.logx);
    return this.gathered.some((run) => run.ended === false) && !this.view.logx ? roomy(found) : found;
  }

  /** @param {BoardRun} run @param {string} name of a metric, or an expression */
  #curve(run, name) {
    const key = feedOf(run);
    return curveOf([key, ...(this.ancestors.get(key) ?? [])].map((id) => this.feeds.get(id)?.curves), name);
  }

  /** Draw a chart, unless it would look as it does. @param {Chart} chart */
  #draw(chart) {
    const name = spread(chart.name, this.names);
    const lines = linesOf(
      name, [...this.gathered, ...(name.includes(",") ? [] : this.faint)], (run, part) => this.#curve(run, part),
    );
    const fetched = this.view.x === "flops" || isComputed(chart.name) || this.runs.some((run) => run.hidden)
      || this.gathered.some((run) => this.feeds.get(feedOf(run))?.curves.has(chart.name));
    if (this.runs.length && !fetched) return;
    const look = { ...this.view, span: this.span };
    if (alike(this.drawn.get(chart), { lines, look })) return;
    if (chart.element.isConnected) this.drawn.set(chart, { lines, look });
    chart.draw(lines, look, this.runs.length === 1 ? this.marks : null);
    this.#light(chart);
    if (this.sought !== null && chart.element === this.place.querySelector(".chart")) this.#seek(chart, this.sought);
    if (this.#cursor?.at === chart) this.#showTip();
  }

  /** Hold the cursor at a step of the first chart, which shows all steps. @param {number} step */
  showStep(step) {
    this.sought = step;
    this.place.querySelector(".plot")?.scrollIntoView({ block: "nearest" });
    this.#zoom(null);
  }

  /** @param {Chart} chart @param {number} sought */
  #seek(chart, sought) {
    const line = chart.lines.find(({ curve }) => curve.step.length);
    if (!line) return;
    this.sought = null;
    const { step, x } = line.curve;
    const i = indexAt(step, sought);
    this.#hold({ step: step[i], x: x[i], run: line.run }, chart);
    chart.plot.focus();
  }

  /** The place of all cursors: the held one, or the pointer's. */
  get #cursor() { return this.held ?? this.hovered; }

  /** @param {import("./lines.js").Place | null} place @param {Chart} at */
  #hover(place, at) {
    this.hovered = place && { place, at };
    if (!this.held) this.#showCursor();
  }

  /** Hold the cursor: it stays when the pointer leaves. @param {import("./lines.js").Place} place @param {Chart} at */
  #hold(place, at) {
    this.held = { place, at };
    write({ at: place.step });
    this.#showCursor();
    this.#showMoment();
  }

  /** Let the held cursor go. @returns {boolean} whether there was one */
  release() {
    if (!this.held) return false;
    this.held = null;
    write({ at: null });
    this.moment.hidden = true;
    this.#showCursor();
    return true;
  }

  /** Show what was written by the step where the cursor is held, below its chart. */
  #showMoment() {
    const held = this.held;
    this.moment.hidden = true;
    const run = this.runs.find(({ id }) => id === held?.place.run) ?? (this.runs.length === 1 ? this.runs[0] : null);
    if (!held || !run) return;
    held.at.element.append(this.moment);
    import("./tip.js").then(({ showMoment }) => showMoment(this.moment, {
      id: run.id, label: this.runs.length > 1 ? run.label : "", step: held.place.step, pins: this.pins.join(","),
      onLog: this.options.onLog, isLeft: () => this.held !== held,
    }));
  }

  /** Draw the lines of a run bold in all charts, also those drawn later; null for none. @param {string | null} run */
  light(run) {
    this.lit = run;
    for (const chart of this.#visible) this.#light(chart);
  }

  /** @param {Chart} chart */
  #light(chart) {
    chart.near(this.lit === null ? (chart.at?.run ?? null) : (this.drawnAs.get(this.lit) ?? this.lit));
  }

  #showCursor() {
    const place = this.#cursor?.place ?? null;
    for (const chart of this.#visible) chart.reading(place);
    this.place.classList.toggle("held", this.held !== null);
    this.options.onLine?.(place?.run ?? null);
    this.#showTip();
  }

  #showTip() {
    const cursor = this.#cursor;
    // Where nobody points there is none.
    if (cursor) import("./tip.js").then(({ showTip }) => (
      this.#cursor === cursor && showTip(this.tip, cursor.place, cursor.at, this.runs.length > 1)
    ));
    else this.tip.hidden = true;
  }
}
