/** The runs that match a filter, fetched page by page in their order, and kept up to date. */

import { get } from "../api.js";
import { integer } from "../format.js";
/** @import { RunView } from "../types.js" */

/** @typedef {{key: string, down: boolean}} Order */

/** @param {string | null} text @returns {Order[]} */
export const ordersOf = (text) => (text ?? "")
  .split(",").filter(Boolean).map((one) => ({ key: one.replace(/^-/, ""), down: one.startsWith("-") }));

/** @param {Order[]} orders @returns {string | null} null for the newest first */
export const textOf = (orders) => orders.map(({ key, down }) => (down ? `-${key}` : key)).join(",") || null;

/**
 * Return the order after a click on the head of a column: rising, falling, then without it.
 *
 * @param {Order[]} orders
 * @param {string} key
 * @param {boolean} more whether the other columns stay
 * @returns {Order[]}
 */
export function pressed(orders, key, more) {
  const kept = more || orders.length < 2 ? orders : [];
  const before = kept.find((one) => one.key === key);
  if (!before) return [...(more ? kept : []), { key, down: false }];
  return before.down
    ? kept.filter((one) => one !== before)
    : kept.map((one) => (one === before ? { key, down: true } : one));
}

/**
 * Return the mark of a column's head: its direction, and its place among several.
 *
 * @param {Order[]} orders
 * @param {string} key
 */
export function markOf(orders, key) {
  const at = orders.findIndex((one) => one.key === key);
  return at < 0 ? "" : ` ${orders[at].down ? "↓" : "↑"}${orders.length > 1 ? at + 1 : ""}`;
}

/** One screen in most cases, where sweeps are folded; later pages are smaller, and those of all runs largest. */
const FIRST = 120;
const [PAGE, MOST_OF_PAGE] = [60, 200];
const MOST = 5000;
const TREND = 24;

/**
 * Return whether a run may belong to the answer to a query: what can change of a run is looked at.
 *
 * @param {RunView} run
 * @param {Record<string, any>} query
 */
export function fits(run, { state, tag, project, within, archived = false }) {
  return (!state || state.includes(run.state))
    && (!tag || run.tags.includes(tag))
    && (!project || run.project === project)
    && (!within || Boolean(within === "sweep" ? run.sweep_id : run.rollout_id))
    && (run.archived ?? false) === archived;
}

/**
 * Compare two values: NaN after numbers, unknown values last, in either direction.
 *
 * @type {(a: number | string | null, b: number | string | null, down: boolean) => number}
 */
export function compared(a, b, down) {
  const [first, second] = [a, b].map((v) => (v === null ? 2 : Number(typeof v === "number" && Number.isNaN(v))));
  if (first !== second || a === null || b === null) return first - second;
  const order = typeof a === "string" ? a.localeCompare(String(b)) : a - Number(b);
  return (down ? -order : order) || 0;
}

export class RunList {
  constructor() {
    /** @type {Map<string, RunView>} */
    this.runs = new Map();
    /** @type {Record<string, unknown>} */
    this.query = {};
    /** @type {string | null} */
    this.cursor = null;
    /** @type {number | null} */
    this.total = null;
    this.loading = false;
    this.generation = 0;
  }

  get complete() {
    return this.cursor === null;
  }

  /** Count the runs in words. @param {number | null} shown by a filter of this page */
  count(shown) {
    const count = this.total ?? this.runs.size;
    const total = `${integer(count)} ${count === 1 ? "run" : "runs"}`;
    if (shown === null) return total;
    return `${integer(shown)} ${this.complete ? "of" : `among the first ${integer(this.runs.size)} of`} ${total}`;
  }

  /** @param {Record<string, unknown>} query */
  async load(query) {
    this.query = query;
    this.generation += 1;
    const generation = this.generation;
    const page = await get("/runs", { ...query, limit: FIRST });
    if (generation !== this.generation) return;
    this.runs = new Map(page.items.map((/** @type {RunView} */ run) => [run.id, run]));
    this.cursor = page.next_cursor;
    this.total = page.total;
  }

  /** Fetch the next page. @param {number} [limit] @returns {Promise<boolean>} false if there is none */
  async more(limit = PAGE) {
    if (this.loading || !this.cursor) return false;
    this.loading = true;
    const generation = this.generation;
    try {
      const page = await get("/runs", { ...this.query, limit, cursor: this.cursor });
      if (generation !== this.generation) return false;
      for (const run of page.items) this.runs.set(run.id, run);
      this.cursor = page.next_cursor;
      return true;
    } finally {
      this.loading = false;
    }
  }

  /** Fetch pages until all runs are here, or as many as the browser tests. */
  async all() {
    while (this.runs.size < MOST && (await this.more(MOST_OF_PAGE)));
  }

  /** Fetch the first page again. Runs beyond it keep their places; those that it no longer has are gone. */
  async refresh() {
    const generation = this.generation;
    const limit = Math.min(MOST_OF_PAGE, Math.max(FIRST, this.runs.size));
    const page = await get("/runs", { ...this.query, limit });
    if (generation !== this.generation) return;
    const fresh = new Map(page.items.map((/** @type {RunView} */ run) => [run.id, run]));
    if (page.next_cursor !== null) {
      const before = [...this.runs];
      // Of a sort, a run that is not among the first any more has moved down.
      const covered = this.query.sort ? -1 : before.findLastIndex(([id]) => fresh.has(id));
      for (const [id, run] of before.slice(covered + 1)) if (!fresh.has(id)) fresh.set(id, run);
    }
    this.runs = fresh;
    this.total = page.total;
    if (page.next_cursor === null) this.cursor = null;
    else if (this.complete && fresh.size < page.total) this.cursor = page.next_cursor;
  }

  /** @param {RunView} run @returns {boolean} whether it was known */
  put(run) {
    if (!this.runs.has(run.id)) return false;
    if (fits(run, this.query)) {
      this.runs.set(run.id, run);
    } else {
      this.runs.delete(run.id);
      if (this.total !== null) this.total -= 1;
    }
    return true;
  }

  /**
   * @param {string} id
   * @param {Record<string, import("../types.js").Latest>} latest
   * @returns {boolean} whether the run is known
   */
  metrics(id, latest) {
    const run = this.runs.get(id);
    if (!run) return false;
    const loss = latest["train/loss"];
    const before = run.latest["train/loss"]?.step ?? 0;
    const step = Math.max(run.step ?? 0, ...Object.values(latest).map((one) => one.step));
    let trend = run.trend;
    if (loss && loss.step > before) {
      // Update the curve's last point; add a point each time a fixed share of the run has passed: of its steps so far,
      // where
      // their number is not known.
      const share = Math.max(1, (run.total_steps || before) / TREND);
      const fresh = trend.length < 2 || Math.floor(loss.step / share) > Math.floor(before / share);
      trend = fresh ? [...trend, loss.value].slice(-TREND) : [...trend.slice(0, -1), loss.value];
    }
    this.runs.set(id, { ...run, latest: { ...run.latest, ...latest }, trend, step });
    return true;
  }
}

/**
 * Fetch runs, in this order: all at once, and by themselves those that are not given by their ids.
 *
 * @param {string[]} refs
 * @returns {Promise<{found: RunView[], missing: unknown}>} `missing`: the error of one that is
 *   not there
 */
export async function fetchRuns(refs) {
  const page = await get("/runs", { run: refs, limit: refs.length });
  const there = new Map(page.items.map((/** @type {RunView} */ run) => [run.id, run]));
  const answers = await Promise.allSettled(
    refs.map((one) => there.get(one) ?? get(`/runs/${encodeURIComponent(one)}`))
  );
  return {
    found: answers.flatMap((answer) => (answer.status === "fulfilled" ? [answer.value] : [])),
    missing: answers.find((answer) => answer.status === "rejected")?.reason ?? null,
  };
}
