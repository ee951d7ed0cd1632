/** The rows of the runs table: runs, and groups that fold them. */

import { get } from "../api.js";
import { byNumber } from "../charts/metric_groups.js";
import { h } from "../dom.js";
import { atPoint, integer, isSeed, metric, NONE, percent } from "../format.js";
import { message } from "../notices.js";
import { countsLine } from "../status.js";
import { spreadOf } from "./columns.js";
import { compared, markOf } from "./list.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("../types.js").SweepView} SweepView
 * @typedef {import("./columns.js").Column} Column
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

/** Return the runs that have a row: those of a folded group have none. @param {Item[]} items */
export const withRows = (items) => items.flatMap((item) => (item.kind === "run" ? [item.run] : []));

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
 * @param {{column: Column, down: boolean} | null} order by which groups come in that of their means
 * @returns {Item[]} each group at the place of its first run
 */
export function grouped(runs, groupOf, isOpen, order = null) {
  /** @type {Map<string, Group | RunView>} */
  const rows = new Map();
  for (const run of runs) {
    const group = groupOf(run);
    const known = rows.get(group?.id ?? run.id);
    if (known && "runs" in known) known.runs.push(run);
    else rows.set(group?.id ?? run.id, group ? { ...group, kind: "group", runs: [run], open: isOpen(group.id) } : run);
  }
  const all = [...rows.values()];
  if (order?.column.mean) {
    const value = new Map(all.map((one) => {
      const { n, mean } = spreadOf(order.column, "runs" in one ? one.runs : [one]);
      return [one, n ? mean : null];
    }));
    all.sort((a, b) => compared(value.get(a) ?? null, value.get(b) ?? null, order.down));
  }
  return all.flatMap((one) => {
    if (!("runs" in one)) return [/** @type {Item} */ ({ kind: "run", run: one, member: false })];
    // Trials are in the order of the grid, not newest first.
    const members = order ? one.runs : [...one.runs].sort((a, b) => byNumber(a.name, b.name));
    return [one, ...(one.open ? members.map((run) => /** @type {Item} */ ({ kind: "run", run, member: true })) : [])];
  });
}

/** The most runs whose groups one request asks for. */
const BATCH = 200;
/** Groups that have a page: a sort lists their runs one by one. */
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

  /** @param {RunView} run @param {boolean} sorted @returns {Pick<Group, "id" | "name" | "href"> | null} */
  of(run, sorted) {
    if (this.byKey) {
      const name = this.names.get(run.id);
      return name === undefined ? null : { id: name, name, href: null };
    }
    const id = this.by === "sweep" ? run.sweep_id : this.by ? run.rollout_id : null;
    if (!id || sorted) return null;
    return { id, name: this.launches.get(id)?.name ?? run.name.replace(/-\d+$/, ""), href: `/${this.by}s/${id}` };
  }

  /** @param {string} group @returns {SweepView | undefined} */
  sweep(group) { return this.by === "sweep" ? this.launches.get(group) : undefined; }

  /** Fetch the newest sweeps or rollouts. @returns {Promise<string[]>} their ids */
  async load() {
    if (!LAUNCHED.includes(this.by)) return [];
    const { items } = await get(`/${this.by}s`, { limit: 100 });
    for (const one of items) this.launches.set(one.id, one);
    return items.map((/** @type {{id: string}} */ { id }) => id);
  }

  /** Ask for the groups of these runs, unless they are here. @param {RunView[]} runs */
  async ask(runs) {
    const { by } = this;
    const ids = runs.map(({ id }) => id);
    const asked = `${by} ${[...ids].sort()}`;
    if (asked === this.asked) return;
    this.asked = asked;
    this.problem = null;
    if (!this.byKey || !ids.length) return;
    try {
      const names = new Map();
      for (let i = 0; i < ids.length; i += BATCH) {
        const found = await get("/values", { run: ids.slice(i, i + BATCH), by });
        found.runs.forEach((/** @type {string} */ id, /** @type {number} */ n) => names.set(id, found.groups[n]));
      }
      if (asked !== this.asked) return;
      this.names = names;
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
 * @type {(column: Column, runs: RunView[]) => import("../dom.js").Child}
 */
function common(column, runs) {
  const { cell, mean: write, setting, sort } = column;
  if (write) {
    const { n, mean, sd } = spreadOf(column, runs);
    if (!n) return NONE;
    const of = `mean of ${integer(n)} of ${integer(runs.length)} runs`;
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
 * @param {SweepView | undefined} sweep undefined until its view is here, and where the group is none
 * @param {Column[]} columns
 * @param {{box: HTMLElement, mark: HTMLElement | null | undefined, onToggle: () => void, onPoint: (run: string | null)
 *   => void}} parts `onPoint`: called with a run whose line is that of the row under the pointer
 */
export function groupRow({ id, name, href, runs, open }, sweep, columns, { box, mark, onToggle, onPoint }) {
  /** @type {Record<string, number>} */
  const counts = {};
  for (const run of runs) counts[run.state] = (counts[run.state] ?? 0) + 1;
  const size = Object.values(sweep?.counts ?? counts).reduce((a, b) => a + b, 0);
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
    if (column.key !== "state") return common(column, runs);
    return [
      countsLine(sweep?.counts ?? counts),
      sweep?.held_out === "different"
        && h("span.reason", { title: sweep.held_out_note }, "no best: different held-out sets"),
      sweep?.best_parameters && h(
        "span.reason", {}, "best ", h("b", {}, metric(sweep.metric, sweep.best_value)), atPoint(sweep.best_parameters),
      ),
    ];
  };
  return h(
    "tr.group",
    {
      "data-sweep": id, "data-curves": open ? "" : runs.map((run) => run.id).join(" "),
      onpointerenter: () => onPoint(open ? null : runs[0].id), onpointerleave: () => onPoint(null),
    },
    h("td.shrink", {}, box, mark), columns.map((column) => cellOf(column, cells(column))),
  );
}

/** @param {Column} column */
const classesOf = ({ key, num }) => `col-${key.replace(/\W/g, "-")}${num ? ".num" : ""}`;

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
  title: column.key === "state" ? [content].flat().map((one) => one?.textContent ?? "").join(" ") : null,
}, content);
