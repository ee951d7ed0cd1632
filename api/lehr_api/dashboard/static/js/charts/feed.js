/** The points of a run's metrics: all of them reduced once, then only what is new. */

import { get } from "../api.js";
import { joined, points, xOfStep } from "./points.js";

/**
 * @typedef {import("./points.js").Points} Points
 * @typedef {import("./points.js").Curve} Curve
 *
 * @typedef {object} Reading what to read, as the toolbar says
 * @property {"step" | "tokens" | "time" | "flops"} x
 * @property {number} smooth share of the past, 0 for none
 * @property {boolean} old whether superseded attempts are wanted
 * @property {[number, number | null] | null} range first and last step
 */

const POINTS = 500;
const LEARN_MS = 1000;

/** @param {Reading} reading the axis to ask the server for */
const axisOf = (reading) => (reading.x === "flops" ? "tokens" : reading.x);

export class Feed {
  /**
   * @param {string} runId
   * @param {string[]} [known] metrics that the run is known to have
   * @param {number | null} [flopsPerToken]
   */
  constructor(runId, known = [], flopsPerToken = null) {
    this.flopsPerToken = flopsPerToken;
    this.runId = runId;
    /** @type {Map<string, Curve>} */
    this.curves = new Map();
    /** @type {Map<string, number>} the x up to which each curve is complete */
    this.until = new Map();
    /** @type {Set<string>} the metrics that the run has, as far as is known */
    this.known = new Set(known);
    this.asked = known.length ? Date.now() : 0;
    /** @type {Points | null} a whole curve, which says where a step lies on the x axis */
    this.scale = null;
    this.generation = 0;
  }

  /** Forget everything: another axis, another range, another attempt. */
  reset() {
    this.generation += 1;
    this.curves.clear();
    this.until.clear();
    this.scale = null;
  }

  /**
   * Fetch what these metrics lack: everything for a new one, else the steps past the last seen.
   *
   * @param {string[]} names
   * @param {Reading} reading
   * @returns {Promise<boolean>} whether anything changed
   */
  async update(names, reading) {
    const generation = this.generation;
    await this.#learn(names);
    const missing = names.filter((name) => !this.curves.has(name) && this.known.has(name));
    const known = names.filter((name) => this.curves.has(name));
    const full = known.filter((name) => (this.curves.get(name)?.step.length ?? 0) > 2 * POINTS);
    const tail = known.filter((name) => !full.includes(name));
    // A closed range that ended before the newest step cannot grow.
    const open = reading.range === null || reading.range[1] === null;
    const [first, last] = await this.#limits(names, reading);
    const from = Math.max(first ?? 0, Math.min(...tail.map((name) => this.until.get(name) ?? 0)));
    const [whole, fresh] = await Promise.all([
      this.#fetch([...missing, ...full], reading, first, last),
      open ? this.#fetch(tail, reading, from, null) : [],
    ]);
    if (generation !== this.generation) return false;
    for (const [name, curve] of whole) this.curves.set(name, curve);
    let changed = whole.length > 0;
    for (const [name, curve] of fresh) {
      const old = this.curves.get(name);
      if (!old || !curve.step.length) continue;
      const grew = curve.step.at(-1) !== old.step.at(-1) || curve.step.length > 1 || curve.y.at(-1) !== old.y.at(-1);
      if (!grew) continue;
      changed = true;
      this.curves.set(name, {
        ...joined(old, curve),
        raw: old.raw && curve.raw ? joined(old.raw, curve.raw) : curve.raw,
        superseded: old.superseded,
      });
    }
    // Metrics come in order of steps, so what one curve has reached, all have: an evaluation of
    // step s is written before step s + 1, and the next request begins at s itself.
    const newest = Math.max(0, ...this.until.values(), ...names.map((name) => this.curves.get(name)?.x.at(-1) ?? 0));
    for (const name of [...missing, ...full, ...tail]) if (this.curves.has(name)) this.until.set(name, newest);
    return changed;
  }

  /**
   * What a unit of the fetched axis is on the drawn one: FLOPs are tokens by what one costs.
   *
   * @param {Reading} reading
   * @returns {number} NaN when the run cannot tell
   */
  #cost(reading) {
    return reading.x === "flops" ? (this.flopsPerToken ?? NaN) : 1;
  }

  /**
   * A run that has just begun, or that failed early, does not have every metric of its page.
   *
   * @param {string[]} names
   */
  async #learn(names) {
    const allKnown = () => names.every((name) => this.known.has(name));
    if (allKnown()) return;
    // Not more often than that, but never given up: this tick may be the last for long.
    const wait = this.asked + LEARN_MS - Date.now();
    if (wait > 0) await new Promise((resolve) => {
      setTimeout(resolve, wait);
    });
    if (allKnown()) return;
    this.asked = Date.now();
    const infos = await get(`/runs/${this.runId}/metrics`);
    this.known = new Set(infos.map((/** @type {import("../types.js").MetricInfo} */ info) => info.name));
  }

  /**
   * The range of steps, on the x axis.
   *
   * @param {string[]} names
   * @param {Reading} reading
   * @returns {Promise<[number | null, number | null]>}
   */
  async #limits(names, reading) {
    if (!reading.range || reading.x === "step") return reading.range ?? [null, null];
    if (!this.scale) {
      const there = names.filter((name) => this.known.has(name));
      if (!there.length) return [null, null];
      const found = /** @type {import("../types.js").SeriesView[]} */ (await get(`/runs/${this.runId}/series`, { name: there, x: axisOf(reading), points: POINTS }));
      const longest = found.reduce((a, b) => (b.step.length > a.step.length ? b : a));
      this.scale = points(longest, this.#cost(reading));
    }
    const [first, last] = reading.range;
    return [xOfStep(this.scale, first), last === null ? null : xOfStep(this.scale, last)];
  }

  /**
   * @param {string[]} names
   * @param {Reading} reading
   * @param {number | null} from on the x axis
   * @param {number | null} to
   * @returns {Promise<[string, Curve][]>}
   */
  async #fetch(names, reading, from, to) {
    const cost = this.#cost(reading);
    if (!names.length || Number.isNaN(cost)) return [];
    const path = `/runs/${this.runId}/series`;
    const common = {
      name: names,
      x: axisOf(reading),
      points: POINTS,
      from: from ? from / cost : null,
      to: to === null ? null : to / cost,
    };
    // Evaluations are few and of all the held-out tokens: they are drawn as they are.
    const rough = names.filter((name) => !name.startsWith("val/"));
    const smooth = reading.smooth && rough.length > 0;
    const superseded = reading.old ? "true" : null;
    const [plain, smoothed] = await Promise.all([
      get(path, { ...common, superseded }),
      smooth ? get(path, { ...common, name: rough, smoothing: reading.smooth, superseded }) : [],
    ]);
    const series = plain.map((/** @type {any} */ one) => smoothed.find((/** @type {any} */ other) => other.name === one.name) ?? one);
    const raw = smooth ? plain.filter((/** @type {any} */ one) => rough.includes(one.name)) : null;
    return series.map((/** @type {import("../types.js").SeriesView} */ one) => {
      const behind = raw?.find((/** @type {any} */ other) => other.name === one.name);
      return [one.name, { ...points(one, cost), raw: behind ? points(behind, cost) : null, superseded: (one.superseded ?? []).map((old) => points(old, cost)) }];
    });
  }
}
