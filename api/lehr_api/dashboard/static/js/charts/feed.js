/** Points of the runs' metrics: fetched for several runs at once, downsampled at first, and then only new ones. */

import { ApiError, get } from "../api.js";
import { joined, points, xOfStep } from "./points.js";
/** @import { Curve, Points } from "./points.js" */
/** @import { BoardRun } from "./lines.js" */

/** Runs and groups that one request asks for. */
const MOST_RUNS = 100;

/**
 * @typedef {object} Wanted what is asked of one run, or of a group
 * @property {string} run its id, or those of the members with commas between them
 * @property {number | null} from
 * @property {(found: any[]) => void} resolve
 * @property {(error: unknown) => void} reject
 */

/** @type {Map<string, {params: Record<string, any>, wanted: Wanted[]}>} */
const waiting = new Map();

/**
 * Ask for series of a run: in one request for all runs of which the same is asked in the same moment.
 *
 * @param {string} run
 * @param {Record<string, any>} params the same for all runs
 * @param {number | null} [from] this run's first x
 * @returns {Promise<any[]>} what the answer has of the run; without the metrics that it does not have
 */
export function ask(run, params, from = null) {
  const key = JSON.stringify([params, from !== null]);
  if (!waiting.size) setTimeout(send, 0);
  const batch = waiting.get(key) ?? { params, wanted: [] };
  waiting.set(key, batch);
  return new Promise((resolve, reject) => {
    batch.wanted.push({ run, from, resolve, reject });
  });
}

function send() {
  const batches = [...waiting.values()];
  waiting.clear();
  for (const { params, wanted } of batches) {
    for (let i = 0; i < wanted.length; i += MOST_RUNS) fetchAll(params, wanted.slice(i, i + MOST_RUNS));
  }
}

/** @param {Record<string, any>} params @param {Wanted[]} wanted */
async function fetchAll(params, wanted) {
  try {
    const found = await get("/series", {
      ...params, run: wanted.map(({ run }) => run),
      from: wanted[0].from === null ? null : wanted.map(({ from }) => from),
    });
    for (const { run, resolve } of wanted) {
      const ids = run.split(",");
      const own = found.filter(
        (/** @type {any} */ one) => ids.includes(one.run_id) && (ids.length > 1 || !(one.members > 1)),
      );
      // A member may have been asked for alone, too: the mean is the last.
      resolve(own.sort((/** @type {any} */ a, /** @type {any} */ b) => a.members - b.members));
    }
  } catch (error) {
    // One run that is gone must not take the others along.
    if (wanted.length > 1 && error instanceof ApiError && error.status === 404) {
      for (const one of wanted) fetchAll(params, [one]);
    }
    else for (const { reject } of wanted) reject(error);
  }
}

/** How many generations of forks are drawn. */
const MOST = 6;

/** @type {Map<string, Promise<{id: string, parent: string | null} | null>>} */
const ancestorsRead = new Map();

/** @param {string | null | undefined} id */
function read(id) {
  if (!id) return null;
  const found = ancestorsRead.get(id) ?? get(`/runs/${id}`).then(
    (run) => ({ id, parent: run.forked_from }),
    // It was deleted, or the server is away: the fork's own curve is there all the same.
    (error) => {
      if (error.status !== 404) ancestorsRead.delete(id);
      return null;
    },
  );
  ancestorsRead.set(id, found);
  return found;
}

/** @param {string | null | undefined} parent @returns {Promise<string[]>} ids */
async function ancestorsOf(parent) {
  const found = [];
  for (let run = await read(parent); run && found.length < MOST; run = await read(run.parent)) found.push(run.id);
  return found;
}

/**
 * @typedef {Pick<import("./toolbar.js").View, "x" | "smooth" | "old" | "range">
 *   & {points?: number, digits?: number, ranges?: string | null}} Reading what to read, as set in the toolbar
 *   `points`: the most of a curve; `digits`: of its values; `ranges`: "false" without those of its buckets
 */

const POINTS = 500;
/** The most points of a curve among others, of all curves of a metric, and the fewest of a curve: charts are small. */
const [EACH, ALL, FEWEST] = [160, 1000, 40];
/** Of so many curves, each has its range. */
export const RANGES = 3;
/** Digits of the values of a curve among others. */
const DIGITS = 5;
/** How long a metric that a run does not have is not asked for again. */
const ABSENT_MS = 10_000;

export class Feed {
  /** @param {string} ref a run, or the members of a group with commas between them */
  constructor(ref) {
    this.ref = ref;
    /** @type {Map<string, Curve>} */
    this.curves = new Map();
    /** @type {Map<string, number>} the x up to which each curve is complete */
    this.until = new Map();
    /** When the run had no such metric. @type {Map<string, number>} */
    this.absent = new Map();
    /** The most points that its curves were asked for with. */
    this.detail = 0;
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
    for (const known of [this.curves, this.until, this.final, this.absent]) known.clear();
    this.scale = null;
  }

  /**
   * Fetch the missing points of these metrics: after the run's end once, and of another attempt from the beginning.
   *
   * @param {string[]} names
   * @param {Reading} reading
   * @param {{ended?: boolean, attempt?: number, metrics?: string[], members?: string[]}} run what is known of it now
   */
  async follow(names, reading, { ended = false, attempt, metrics = [], members = [this.ref] }) {
    for (const name of metrics) this.absent.delete(name);
    // A group has another member, or there is room for more points: the curves stay until the next are here.
    const [ref, most] = [members.join(), reading.points ?? POINTS];
    const isOther = ref !== this.ref || most >= 2 * this.detail;
    if (isOther) this.final.clear();
    if (isOther) this.until.clear();
    if (ref !== this.ref) this.generation += 1;
    [this.ref, this.detail] = [ref, isOther ? most : this.detail];
    if (attempt !== undefined) {
      // A resume goes back in steps, so fetched points may be superseded.
      if (this.attempt !== null && attempt !== this.attempt) this.reset();
      this.attempt = attempt;
    }
    if (!ended) this.final.clear();
    else if (names.every((name) => this.final.has(name))) return;
    const generation = this.generation;
    await this.update(names, reading);
    if (ended && generation === this.generation && ref === this.ref) for (const name of names) this.final.add(name);
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
    const absent = (/** @type {string} */ name) => Date.now() - (this.absent.get(name) ?? -Infinity) < ABSENT_MS;
    const missing = names.filter((name) => !this.curves.has(name) && !absent(name));
    const known = names.filter((name) => this.curves.has(name));
    const most = 2 * (reading.points ?? POINTS);
    // The members of a group are not at the same step.
    const full = known.filter((name) => (
      this.ref.includes(",") || !this.until.has(name) || (this.curves.get(name)?.step.length ?? 0) > most
    ));
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
    for (const name of missing) if (!this.curves.has(name)) this.absent.set(name, Date.now());
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
   * Return the range of steps in units of the x axis.
   *
   * @param {string[]} names
   * @param {Reading} reading
   * @returns {Promise<[number | null, number | null]>}
   */
  async #limits(names, reading) {
    if (!reading.range || reading.x === "step") return reading.range ?? [null, null];
    if (!this.scale) {
      const found = /** @type {import("../types.js").Series[]} */ (await ask(
        this.ref, { name: names, x: reading.x, points: POINTS },
      ));
      if (!found.length) return [null, null];
      const longest = found.reduce((a, b) => (b.step.length > a.step.length ? b : a));
      this.scale = points(longest);
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
    if (!names.length) return [];
    const common = {
      name: names, x: reading.x, points: reading.points ?? POINTS, to, digits: reading.digits, ranges: reading.ranges,
    };
    const first = from || null;
    // Evaluations are few and cover all held-out tokens: draw them without smoothing.
    const rough = names.filter((name) => !name.startsWith("val/"));
    const smooth = reading.smooth && rough.length > 0;
    const superseded = reading.old ? "true" : null;
    const [plain, smoothed] = await Promise.all([
      ask(this.ref, { ...common, superseded }, first),
      smooth
        ? ask(this.ref, { ...common, name: rough, smoothing: reading.smooth, superseded }, first)
        : [],
    ]);
    const series = plain.map(
      (/** @type {any} */ one) => smoothed.findLast((/** @type {any} */ other) => other.name === one.name) ?? one
    );
    const raw = smooth ? plain.filter((/** @type {any} */ one) => rough.includes(one.name)) : null;
    return series.map((/** @type {import("../types.js").Series} */ one) => {
      const behind = raw?.find((/** @type {any} */ other) => other.name === one.name);
      return [one.name, {
        ...points(one), raw: behind ? points(behind) : null, superseded: (one.superseded ?? []).map(points),
      }];
    });
  }
}

/**
 * Fetch what is missing of the curves of these runs, and of those that they were forked from.
 *
 * @param {{feeds: Map<string, Feed>, ancestors: Map<string, string[]>}} board what is here already, by `feedOf`
 * @param {BoardRun[]} runs those that have lines of their own
 * @param {string[]} names
 * @param {Reading} reading
 */
export async function fetchCurves({ feeds, ancestors }, runs, names, reading) {
  const few = runs.length <= RANGES;
  Object.assign(reading, runs.length > 1 && {
    points: Math.min(EACH, Math.max(FEWEST, Math.round(ALL / runs.length))), digits: DIGITS,
    ranges: few ? null : "false",
  });
  /** @param {Pick<BoardRun, "id" | "members" | "metrics" | "ended" | "attempt">} run */
  const follow = async (run) => {
    const feed = feeds.get(feedOf(run)) ?? new Feed(run.members?.join() ?? run.id);
    feeds.set(feedOf(run), feed);
    await feed.follow(names, reading, run);
  };
  await Promise.all(runs.map(async (run) => {
    await follow(run);
    // The clock of a fork begins again, so its parent has no place before it.
    const before = reading.x === "time" ? [] : await ancestorsOf(run.parent);
    ancestors.set(feedOf(run), before);
    const unseen = before.filter((id) => !runs.some((other) => other.id === id && !other.members));
    await Promise.all(unseen.map((id) => follow({ id, ended: true })));
  }));
}

/** The name of a line's feed: a group's is not that of its first run. @param {Pick<BoardRun, "id" | "members">} run */
export const feedOf = ({ id, members }) => (members ? `${id}+` : id);
