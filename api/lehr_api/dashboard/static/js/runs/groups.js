/** The rows of the runs table: runs, and groups that fold them. */

import { get } from "../api.js";
import { byNumber } from "../charts/metric_groups.js";
import { h } from "../dom.js";
import { farNote, integer, isSeed, NONE, percent } from "../format.js";
import { message } from "../notices.js";
import { countsLine, stateMark } from "../status.js";
import { bestOfSweep, farOf, metricOf, spreadOf } from "./columns.js";
import { valueOf } from "./filter.js";
import { compared, markOf } from "./list.js";
/** @import { RunView } from "../types.js" */
/** @import { Column } from "./columns.js" */
/** @import { Configs } from "./configs.js" */

/**
 * @typedef {{kind: "group", id: string, name: string, href: string | null, runs: RunView[], open: boolean}} Group
 * @typedef {{kind: "run", run: RunView, member: boolean} | Group} Item
 */

/** The most trials with which a sweep is unfolded by itself. */
const SMALL_SWEEP = 16;

/**
 * Return the small sweeps that are unfolded until a user folds them: most users look for the newest that has trained.
 *
 * @param {RunView[]} runs newest first
 * @param {boolean} filtered whether they are the matches of a filter: then all sweeps, which would hide them
 */
export function unfolded(runs, filtered) {
  /** @type {Map<string, number>} */
  const sizes = new Map();
  for (const { sweep_id: id } of runs) if (id) sizes.set(id, (sizes.get(id) ?? 0) + 1);
  // Repetitions of a run with other seeds would put the grid that it is from out of sight.
  const newest = runs.find(
    (run) => run.sweep_id && run.step !== null && !Object.keys(run.parameters_varied).every(isSeed)
  )?.sweep_id;
  return new Set(
    [...sizes].filter(([id, size]) => size <= SMALL_SWEEP && (filtered || id === newest)).map(([id]) => id)
  );
}

/** Return the runs that have a row. @param {Item[]} items @param {boolean} [led] also the first of each group */
export const withRows = (items, led = false) => items.flatMap(
  (item) => (item.kind === "run" ? [item.run] : item.runs.slice(0, Number(led))),
);

/**
 * Return the lines that the rows stand for: one of each run, and of a folded group the mean.
 *
 * @param {Item[]} items
 * @returns {{key: string, name: string | null, runs: RunView[]}[]} `name`: of a group
 */
export const linesOf = (items) => items.flatMap((item) => (
  item.kind === "run" ? { key: item.run.id, name: null, runs: [item.run] }
    : item.open ? [] : { key: item.id, name: item.name, runs: item.runs }
));

/**
 * @param {RunView[]} runs in the order of the table
 * @param {(run: RunView) => Pick<Group, "id" | "name" | "href"> | null} groupOf null for a run by itself
 * @param {(group: string) => boolean} isOpen
 * @param {object} [order]
 * @param {boolean} [order.sorted] whether the runs are
 * @param {((runs: RunView[]) => number | string | null)[]} [order.ranks] what groups come in the order of
 * @param {boolean} [order.down] the highest first
 * @param {Pick<Group, "id" | "name" | "href">[]} [order.first] groups that come first, also if no run of them is here
 * @returns {Item[]} each other group at the place of its first run: the best of its runs, if they are sorted
 */
export function grouped(runs, groupOf, isOpen, { sorted = false, ranks = [], down = false, first = [] } = {}) {
  /** @type {Map<string, Group | RunView>} */
  const rows = new Map(first.map((one) => [one.id, { ...one, kind: "group", runs: [], open: isOpen(one.id) }]));
  for (const run of runs) {
    const group = groupOf(run);
    const known = rows.get(group?.id ?? run.id);
    if (known && "runs" in known) known.runs.push(run);
    else rows.set(group?.id ?? run.id, group ? { ...group, kind: "group", runs: [run], open: isOpen(group.id) } : run);
  }
  const all = [...rows.values()];
  const values = new Map(all.map((one) => [one, ranks.map((rank) => rank("runs" in one ? one.runs : [one]))]));
  const at = (/** @type {Group | RunView} */ one, /** @type {number} */ i) => values.get(one)?.[i] ?? null;
  all.sort((a, b) => ranks.map((_, i) => compared(at(a, i), at(b, i), down)).find(Boolean) ?? 0);
  return all.flatMap((one) => {
    if (!("runs" in one)) return [/** @type {Item} */ ({ kind: "run", run: one, member: false })];
    // Trials are in the order of the grid, not newest first.
    const members = sorted ? one.runs : [...one.runs].sort((a, b) => byNumber(a.name, b.name));
    return [one, ...(one.open ? members.map((run) => /** @type {Item} */ ({ kind: "run", run, member: true })) : [])];
  });
}

/** Of so few runs none is far (`far_runs`). */
const FEW = 3;
/** After so many milliseconds those that are far are asked for again while runs go on. */
const AGAIN_MS = 15_000;
/** Groups that have a page. */
const LAUNCHED = ["sweep", "rollout"];

/** What groups runs belong to: sweeps, rollouts, or by any key, as the server names them. */
export class Groups {
  /** @param {string} by @param {() => void} onChange */
  constructor(by, onChange) {
    this.by = by;
    this.onChange = onChange;
    /** @type {Map<string, any>} the newest sweeps, and rollouts if they are asked for */
    this.launches = new Map();
    /** @type {Map<string, string>} by run, the name of its group */
    this.names = new Map();
    this.asked = this.answered = "";
    /** @type {string | null} */
    this.problem = null;
  }

  /** Whether groups are by a key, so that all runs must be here. */
  get byKey() { return this.by !== "" && !LAUNCHED.includes(this.by); }

  get waits() { return this.byKey && this.asked !== this.answered; }

  /** @param {RunView} run @returns {Pick<Group, "id" | "name" | "href"> | null} */
  of(run) {
    if (this.byKey) {
      const name = this.names.get(run.id);
      return name === undefined ? null : { id: name, name, href: null };
    }
    const id = this.by === "sweep" ? run.sweep_id : this.by ? run.rollout_id : null;
    return id ? this.#launched(id, run.name.replace(/-\d+$/, "")) : null;
  }

  /**
   * Return what groups by a key come in the order of: their means of a column, or the values of the key.
   *
   * @param {Column | null} column that they are sorted by
   * @param {Configs} configs
   * @returns {((runs: RunView[]) => number | string | null)[]} nothing: the place of their first runs
   */
  ranks(column, configs) {
    if (!this.byKey || (column && !column.mean)) return [];
    if (column) return [(runs) => spreadOf(column, runs).mean];
    return this.by.toLowerCase().split(",").map((key) => ([run]) => valueOf(run, key.trim(), configs) ?? null);
  }

  /** @param {string} id @param {string} name if its view is not here */
  #launched(id, name) {
    return { id, name: this.launches.get(id)?.name ?? name, href: `/${this.by}s/${id}` };
  }

  /**
   * Return whether a row may have runs that are not here: of a sort, the row of the last one; else the newest come
   * first.
   *
   * @param {Item} item @param {RunView[]} runs that are here @param {boolean} sorted
   */
  lacks(item, runs, sorted) {
    if (item.kind !== "group") return false;
    if (sorted) return item.runs.at(-1) === runs.at(-1);
    const oldest = Math.min(...runs.map((run) => run.created_at));
    return (this.launches.get(item.id)?.created_at ?? Infinity) <= oldest;
  }

  /** Return the groups that have a page, the newest first. */
  get launched() { return [...this.launches.keys()].map((id) => this.#launched(id, id)); }

  /** Fetch the newest sweeps or rollouts. @returns {Promise<string[]>} their ids */
  async load() {
    if (!LAUNCHED.includes(this.by)) return [];
    const { items } = await get(`/${this.by}s`, { limit: 100 });
    const before = this.launches;
    // The newest first, also of those that have come.
    this.launches = new Map(items.map((/** @type {any} */ one) => [one.id, one]));
    for (const [id, one] of before) if (!this.launches.has(id)) this.launches.set(id, one);
    for (const one of items) metricOf.set(one.id, one.metric);
    return items.map((/** @type {{id: string}} */ { id }) => id);
  }

  /** Return the runs of each row in which one can be far, with commas between them. @param {RunView[]} runs */
  #rows(runs) {
    const rows = Map.groupBy(runs.filter((run) => this.of(run)), (run) => this.of(run)?.id);
    return [...rows.values()].filter((row) => row.length > FEW).map((row) => row.map(({ id }) => id).join());
  }

  /**
   * Ask for the groups of these runs, and for those that are in no mean of these metrics, unless they are here.
   *
   * @param {RunView[]} runs
   * @param {string[]} metrics
   */
  async ask(runs, metrics) {
    const by = this.byKey ? this.by : null;
    const run = by ? runs.map(({ id }) => id) : this.#rows(runs);
    // One that goes on or has ended may be far now.
    const time = run.length && runs.some((one) => one.ended_at === null) && Math.floor(Date.now() / AGAIN_MS);
    const asked = `${this.by} ${time} ${metrics} ${runs.map(({ id, ended_at: at }) => (at ? `${id}.` : id)).sort()}`;
    if (asked === this.asked) return;
    this.asked = asked;
    this.problem = null;
    try {
      const found = run.length ? await get("/values", { run, by, metric: metrics, configs: false }) : { far: {} };
      if (asked !== this.asked) return;
      if (by) this.names = new Map(run.map((id, n) => [id, found.groups[n]]));
      farOf.clear();
      for (const [metric, far] of Object.entries(found.far)) farOf.set(metric, far);
    } catch (error) {
      if (asked !== this.asked) return;
      this.names = new Map();
      this.problem = message(error);
    }
    this.answered = asked;
    this.onChange();
  }
}

/**
 * Return what a column shows of a group: the mean of a metric with its standard deviation, or what all have in common.
 *
 * @type {(column: Column, runs: RunView[], known: boolean) => import("../dom.js").Child} `known`: whether who is far is
 */
function common(column, runs, known) {
  const { cell, mean: write, setting, sort } = column;
  if (write) {
    const { n, mean, sd, far } = spreadOf(column, runs);
    if (!n) return NONE;
    if (!known && runs.length > FEW) return "…";
    const of = `mean of ${integer(n)} of ${integer(runs.length)} runs${farNote(far.map(({ name }) => name))}`;
    // As many digits as the deviation leaves certain.
    const digits = Math.min(3, Math.max(0, 1 - Math.floor(Math.log10(sd || 1e-3))));
    return sd === null || Math.abs(mean) >= 1000 || write === percent
      ? h("span", { title: of }, write(mean))
      : h(
        "span", { title: `${of}, ± standard deviation ${sd}` }, mean.toFixed(digits),
        h("span.dim.sd", {}, ` ±${sd.toFixed(digits)}`),
      );
  }
  if (!sort) return null;
  const values = new Set(runs.map(sort));
  if (values.size === 1 && !values.has(null)) return cell(runs[0]);
  return setting && values.size > 1 ? h("span.dim", {}, `${values.size} values`) : null;
}

/**
 * @param {Group} group
 * @param {any} launch the view of the sweep or rollout; undefined until it is here, and where the group is none
 * @param {Column[]} columns
 * @param {{box: HTMLElement, mark: HTMLElement | null | undefined, onToggle: () => void, onPoint: (run: string | null)
 *   => void, leads: string | null, best: Map<string, number>, known: boolean}} parts `onPoint`: called with a run whose
 *   line is that of the row under the pointer; `leads`: the column by which the first run stands for the others
 */
export function groupRow({ id, name, href, runs, open }, launch, columns, parts) {
  const { box, mark, onToggle, onPoint, leads, best, known } = parts;
  /** @type {Record<string, number>} */
  const counts = {};
  for (const run of runs) counts[run.state] = (counts[run.state] ?? 0) + 1;
  const states = launch?.counts ?? counts;
  const size = Math.max(runs.length, Object.values(launch?.counts ?? {}).reduce((a, b) => a + b, 0));
  const isLed = (/** @type {Column} */ { key, setting }) => leads && runs.length > 0 && (key === leads || setting);
  const cells = (/** @type {Column} */ column) => {
    if (column.key === "name") {
      return h(
        "span.group-name", {},
        h("button.twist", {
          type: "button", "aria-expanded": String(open), "aria-label": `${open ? "Fold" : "Unfold"} ${name}`,
          onclick: onToggle,
        }, open ? "▾" : "▸"),
        href ? h("a.name", { href, title: name }, name) : h("span.name", { title: name, onclick: onToggle }, name),
        h("span.dim", {}, runs.length < size ? `(${runs.length} of ${size})` : `(${size})`),
      );
    }
    if (column.key === "state") {
      const found = launch?.counts && !leads && !columns.some(({ key }) => key === "best") && bestOfSweep(launch);
      return [
        launch?.progress ? stateMark(launch.state) : countsLine(states),
        launch?.reason && h("span.reason", { title: launch.reason }, launch.reason),
        found && h("span.reason.bests", {}, launch.held_out === "different" ? "no best: " : "best ", found),
      ];
    }
    if (column.whole && (launch || column.key === "hours")) return column.whole(launch, runs);
    if (!isLed(column)) return common(column, runs, known);
    const title = `${runs[0].name}, the first of ${integer(runs.length)} runs in this order`;
    return h("span", { title }, column.cell(runs[0]));
  };
  return h(
    "tr.group",
    {
      "data-sweep": id, tabindex: "-1", "data-curves": open ? "" : runs.map((run) => run.id).join(" "),
      onpointerenter: () => onPoint(open ? null : runs[0]?.id ?? null), onpointerleave: () => onPoint(null),
    },
    h("td.shrink", {}, box, mark), columns.map((column) => cellOf(
      column, cells(column), Boolean(isLed(column)) && column.sort?.(runs[0]) === (best.get(column.key) ?? NaN),
    )),
  );
}

/** @param {Column} column */
const classesOf = ({ key, num, main, setting }) => [
  `col-${key.replace(/\W/g, "-")}`, num && "num", main && "main", setting && "setting",
].filter(Boolean).join(".");

/**
 * @param {Column} column
 * @param {import("./list.js").Order[]} orders
 * @param {(key: string, more: boolean) => void} onSort `more`: the other columns stay
 */
export function headOf(column, orders, onSort) {
  const { key, title, hint, sort } = column;
  const sortable = sort && h("button.sort", {
    type: "button",
    // Or the text between two heads is selected.
    onmousedown: (/** @type {MouseEvent} */ event) => event.shiftKey && event.preventDefault(),
    onclick: (/** @type {MouseEvent} */ event) => onSort(key, event.shiftKey),
  }, title + markOf(orders, key));
  return h(`th.${classesOf(column)}`, {
    key, scope: "col", title: [hint, sort && "Shift and click: sort by it as well"].filter(Boolean).join(". "),
    // Assistive technology takes one column as the order: the first.
    "aria-sort": orders[0]?.key === key && (orders[0].down ? "descending" : "ascending"),
  }, sortable ?? title);
}

/** @param {Column} column @param {import("../dom.js").Child} content @param {boolean} [best] */
export const cellOf = (column, content, best = false) => h(`td.${classesOf(column)}${best ? ".is-best" : ""}`, {
  // In a rail it is a mark alone.
  "data-label": column.main && column.title,
  title: column.key === "state" ? [content].flat().map((one) => one?.textContent ?? "").join(" ") : null,
}, content);
