/** Points of the runs' metrics: fetched for several runs at once, downsampled at first, and then only new ones. */

import { ApiError, get } from "../api.js";
import { joined, points, xOfStep } from "./points.js";

/** Runs that one request asks for: the curves of the first ones arrive while the server reads the next ones. */
const MOST_RUNS = 25;

/**
 * @typedef {object} Wanted what is asked of one run
 * @property {string} run
 * @property {number | null} from
 * @property {(found: any[]) => void} resolve
 * @property {(error: unknown) => void} reject
 */

/** @type {Map<string, {path: string, params: Record<string, any>, wanted: Wanted[]}>} */
const waiting = new Map();

/**
 * Ask for `/runs/RUN/PATH`, or, if the same is asked of other runs in the same moment, for all of them in `/PATH`.
 *
 * @param {string} path
 * @param {string} run
 * @param {Record<string, any>} params the same for all runs
 * @param {number | null} [from] this run's first x
 * @returns {Promise<any[]>} the answer of `/runs/RUN/PATH`; without the metrics that the run does not have
 */
export function ask(path, run, params, from = null) {
  const key = JSON.stringify([path, params, from !== null]);
  if (!waiting.size) setTimeout(send, 0);
  const batch = waiting.get(key) ?? { path, params, wanted: [] };
  waiting.set(key, batch);
  return new Promise((resolve, reject) => {
    batch.wanted.push({ run, from, resolve, reject });
  });
}

function send() {
  const batches = [...waiting.values()];
  waiting.clear();
  for (const { path, params, wanted } of batches) {
    for (let i = 0; i < wanted.length; i += MOST_RUNS) fetchAll(path, params, wanted.slice(i, i + MOST_RUNS));
  }
}

/** @param {string} path @param {Record<string, any>} params @param {Wanted[]} wanted */
async function fetchAll(path, params, wanted) {
  try {
    if (wanted.length === 1) {
      const [{ run, from, resolve }] = wanted;
      resolve(await get(`/runs/${run}${path}`, { ...params, from }));
      return;
    }
    const found = await get(path, {
      ...params, run: wanted.map(({ run }) => run),
      from: wanted[0].from === null ? null : wanted.map(({ from }) => from),
    });
    for (const { run, resolve } of wanted) {
      const own = found.filter((/** @type {any} */ one) => one.run_id === run);
      resolve(path === "/metrics" ? own.flatMap((/** @type {any} */ one) => one.metrics) : own);
    }
  } catch (error) {
    // One run that is gone must not take the others along.
    if (wanted.length > 1 && error instanceof ApiError && error.status === 404) {
      for (const one of wanted) fetchAll(path, params, [one]);
    }
    else for (const { reject } of wanted) reject(error);
  }
}

/** How many generations of forks are drawn. */
const MOST = 6;

/** @typedef {{id: string, flopsPerToken: number | null}} Ancestor */

/** @type {Map<string, Promise<{id: string, flopsPerToken: number | null, parent: string | null} | null>>} */
const ancestorsRead = new Map();

/** @param {string} id */
function read(id) {
  const found = ancestorsRead.get(id) ?? get(`/runs/${id}`).then(
    (run) => ({ id, flopsPerToken: run.flops_per_token, parent: run.forked_from }),
    // It was deleted, or the server is away: the fork's own curve is there all the same.
    (error) => {
      if (error.status !== 404) ancestorsRead.delete(id);
      return null;
    },
  );
  ancestorsRead.set(id, found);
  return found;
}

/** @param {string | null | undefined} parent @returns {Promise<Ancestor[]>} */
export async function ancestorsOf(parent) {
  /** @type {Ancestor[]} */
  const found = [];
  let next = parent ?? null;
  while (next && found.length < MOST) {
    const run = await read(next);
    if (!run) break;
    found.push(run);
    next = run.parent;
  }
  return found;
}

/**
 * @typedef {import("./points.js").Points} Points
 * @typedef {import("./points.js").Curve} Curve
 * @typedef {import("./lines.js").BoardRun} BoardRun
 *
 * @typedef {object} Reading what to read, as set in the toolbar
 * @property {"step" | "tokens" | "time" | "flops"} x
 * @property {number} smooth weight of earlier points; 0 for no smoothing
 * @property {boolean} old whether to include superseded attempts
 * @property {[number, number | null] | null} range first and last step
 * @property {number} [points] the most of a curve
 */

const POINTS = 500;
/** Points of all curves of a metric: of many, each has fewer, but at least so many. */
const [ALL, FEWEST] = [5000, 50];
const LEARN_MS = 1000;

/** @param {Reading} reading the axis to request from the server */
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
    /** @type {Set<string>} the metrics that the run is known to have */
    this.known = new Set(known);
    this.asked = known.length ? Date.now() : 0;
    /** @type {Points | null} a complete curve, which maps steps to the x axis */
    this.scale = null;
    this.generation = 0;
    /** The attempt whose points these are; null before the first. @type {number | null} */
    this.attempt = null;
    /** @type {Set<string>} the metrics that were fetched after the end of the run */
    this.final = new Set();
  }

  /** Forget all points, after a change of axis, range or attempt. */
  reset() {
    this.generation += 1;
    this.curves.clear();
    this.until.clear();
    this.final.clear();
    this.scale = null;
  }

  /** Ask again for what may have come, also of a run that has ended. */
  announce() {
    this.final.clear();
  }

  /**
   * Fetch the missing points of these metrics: after the run's end once, and of another attempt from the beginning.
   *
   * @param {string[]} names
   * @param {Reading} reading
   * @param {{ended?: boolean, attempt?: number}} run what is known of it now
   */
  async follow(names, reading, { ended = false, attempt }) {
    if (attempt !== undefined) {
      // A resume goes back in steps, so fetched points may be superseded.
      if (this.attempt !== null && attempt !== this.attempt) this.reset();
      this.attempt = attempt;
    }
    if (!ended) this.final.clear();
    else if (names.every((name) => this.final.has(name))) return;
    const generation = this.generation;
    await this.update(names, reading);
    if (ended && generation === this.generation) for (const name of names) this.final.add(name);
  }

  /**
   * Fetch the missing points of these metrics: all of a new one, else those after the last known step.
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
    // Metrics arrive in order of steps, so a step that one curve has reached is complete for all. An evaluation of
    // step s is written before step s + 1, and the next request begins at s itself.
    const newest = Math.max(0, ...this.until.values(), ...names.map((name) => this.curves.get(name)?.x.at(-1) ?? 0));
    for (const name of [...missing, ...full, ...tail]) if (this.curves.has(name)) this.until.set(name, newest);
    return changed;
  }

  /**
   * Return the factor from the fetched axis to the drawn one: FLOPs are tokens times the cost of a token.
   *
   * @param {Reading} reading
   * @returns {number} NaN if the run has no such figure
   */
  #cost(reading) {
    return reading.x === "flops" ? (this.flopsPerToken ?? NaN) : 1;
  }

  /**
   * Load the names of the metrics. A run that has just begun or failed early does not have all of them.
   *
   * @param {string[]} names
   */
  async #learn(names) {
    const allKnown = () => names.every((name) => this.known.has(name));
    if (allKnown()) return;
    // Limit the rate, but do not drop the request: the next event may be minutes away.
    const wait = this.asked + LEARN_MS - Date.now();
    if (wait > 0) await new Promise((resolve) => {
      setTimeout(resolve, wait);
    });
    if (allKnown()) return;
    this.asked = Date.now();
    const infos = await ask("/metrics", this.runId, {});
    this.known = new Set(infos.map((/** @type {import("../types.js").MetricInfo} */ info) => info.name));
  }

  /**
   * Return the range of steps in units of the x axis.
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
      const found = /** @type {import("../types.js").Series[]} */ (await ask(
        "/series", this.runId, { name: there, x: axisOf(reading), points: POINTS },
      ));
      const longest = found.reduce((a, b) => (b.step.length > a.step.length ? b : a));
      this.scale = points(longest, this.#cost(reading));
    }
    const [first, last] = reading.range;
    return [xOfStep(this.scale, first), last === null ? null : xOfStep(this.scale, last)];
  }

  /**
   * @param {string[]} names
   * @param {Reading} reading
   * @param {number | null} from position on the x axis
   * @param {number | null} to
   * @returns {Promise<[string, Curve][]>}
   */
  async #fetch(names, reading, from, to) {
    const cost = this.#cost(reading);
    if (!names.length || Number.isNaN(cost)) return [];
    const common = {
      name: names, x: axisOf(reading), points: reading.points ?? POINTS, to: to === null ? null : to / cost,
    };
    const first = from ? from / cost : null;
    // Evaluations are few and cover all held-out tokens: draw them without smoothing.
    const rough = names.filter((name) => !name.startsWith("val/"));
    const smooth = reading.smooth && rough.length > 0;
    const superseded = reading.old ? "true" : null;
    const [plain, smoothed] = await Promise.all([
      ask("/series", this.runId, { ...common, superseded }, first),
      smooth
        ? ask("/series", this.runId, { ...common, name: rough, smoothing: reading.smooth, superseded }, first)
        : [],
    ]);
    const series = plain.map(
      (/** @type {any} */ one) => smoothed.find((/** @type {any} */ other) => other.name === one.name) ?? one
    );
    const raw = smooth ? plain.filter((/** @type {any} */ one) => rough.includes(one.name)) : null;
    return series.map((/** @type {import("../types.js").Series} */ one) => {
      const behind = raw?.find((/** @type {any} */ other) => other.name === one.name);
      return [one.name, {
        ...points(one, cost), raw: behind ? points(behind, cost) : null,
        superseded: (one.superseded ?? []).map((old) => points(old, cost))
      }];
    });
  }
}

/**
 * Fetch what is missing of the curves of these runs, and of those that they were forked from.
 *
 * @param {{feeds: Map<string, Feed>, ancestors: Map<string, string[]>}} board what is here already, by run
 * @param {BoardRun[]} runs
 * @param {string[]} names
 * @param {Reading} reading
 */
export async function fetchCurves({ feeds, ancestors }, runs, names, reading) {
  reading.points = Math.min(POINTS, Math.max(FEWEST, Math.round(ALL / runs.length)));
  /** @param {Pick<BoardRun, "id" | "metrics" | "flopsPerToken" | "ended" | "attempt">} run */
  const follow = async (run) => {
    const feed = feeds.get(run.id) ?? new Feed(run.id, run.metrics, run.flopsPerToken);
    feeds.set(run.id, feed);
    await feed.follow(names, reading, run);
  };
  await Promise.all(runs.map(async (run) => {
    await follow(run);
    // The clock of a fork begins again, so its parent has no place before it.
    const before = reading.x === "time" ? [] : await ancestorsOf(run.parent);
    ancestors.set(run.id, before.map(({ id }) => id));
    const unseen = before.filter(({ id }) => !runs.some((other) => other.id === id));
    await Promise.all(unseen.map((one) => follow({ ...one, ended: true })));
  }));
}
