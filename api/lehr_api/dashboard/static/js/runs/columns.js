/** The columns of the runs table. */

import { sparkline } from "../charts/drawing.js";
import { h } from "../dom.js";
import * as f from "../format.js";
import { REFERENCE } from "../run/tags_archive.js";
import { progress, runReason, runState } from "../status.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 *
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {string} [hint]
 * @property {boolean} [num]
 * @property {boolean} [off] hidden by default
 * @property {boolean} [setting] of the config
 * @property {(value: number) => string} [mean] of a metric: writes the mean of a group
 * @property {number} [goal] of a metric: 1 where the highest value is the best, -1 where the lowest is
 * @property {(run: RunView) => import("../dom.js").Child} cell
 * @property {(run: RunView) => number | string | null} [sort]
 */

const LOWER = /loss|perplexity|ppl|bits_per_byte|err(or)?s?\b|step_time/;
const HIGHER = /acc(uracy)?\b|mfu|per_s\b|f1|reward|utilization/;

/**
 * Return the column of a metric's newest value.
 *
 * @param {string} name
 * @param {string} [title]
 * @param {(value: any) => string} [mean] writes a value
 * @param {(run: RunView) => unknown} [valueOf]
 * @returns {Column}
 */
export const metricColumn = (
  name, title = name, mean = (value) => f.metric(name, value), valueOf = (run) => run.latest[name]?.value,
) => ({
  key: name, title, hint: `${name}, last`, num: true, mean, goal: LOWER.test(name) ? -1 : Number(HIGHER.test(name)),
  cell: (run) => mean(valueOf(run)), sort: (run) => f.fromWire(valueOf(run) ?? null),
});

/** @param {RunView} run */
function where(run) {
  if (run.placement.length) {
    const node = run.placement[0].node;
    const same = run.placement.every((one) => one.node === node);
    const held = run.placement.map((one) => one.gpu);
    return same
      ? `${node}:${held.length > 2 ? `${held[0]}–${held.at(-1)}` : held.join(",")}`
      : `${run.placement.length} on ${run.nodes} nodes`;
  }
  return null;
}

/** @param {RunView} run */
function gpus(run) {
  const kind = run.gpu_type ?? "";
  return h("span", { title: where(run) }, kind ? `${run.gpus}×${kind}` : String(run.gpus));
}

/** What the server computes of each run: the best value, and the difference to the reference of its project. */
export const JUDGED = ["best:val/loss", "versus:val/loss"];
const TITLES = /** @type {Record<string, [string, string]>} */ ({
  [JUDGED[0]]: ["best val", "val/loss, the best"],
  [JUDGED[1]]: ["vs ★", "val/loss, less that of the project's reference run at equal tokens"],
});

/** @param {string} name one of those @param {(run: RunView) => unknown} valueOf @returns {Column} */
export const judgedColumn = (name, valueOf) => ({
  ...metricColumn(name, TITLES[name][0], name === JUDGED[1] ? f.signed : f.number, valueOf),
  hint: TITLES[name][1],
});

/** @type {Column[]} */
export const COLUMNS = [
  {
    key: "name",
    title: "name",
    cell: (run) => [
      run.tags.includes(REFERENCE) && h("span.star", { title: "the reference of its project" }, "★"),
      h("a.name", { href: `/runs/${run.id}`, title: run.name }, run.name),
    ],
    sort: (run) => run.name,
  },
  {
    key: "state",
    title: "state",
    cell: (run) => {
      const reason = runReason(run);
      return [
        runState(run),
        run.alerts.length > 0 && h(
          "span.warn", { title: run.alerts.join("\n") }, " ⚠", h("span.n", {}, ` ${run.alerts.length}`),
        ),
        reason && h("span.reason", { title: reason }, reason),
      ];
    },
    sort: (run) => run.state,
  },
  {
    key: "step",
    title: "step",
    num: true,
    cell: (run) => (run.step === null ? f.NONE : [
      f.integer(run.step), run.total_steps > 0 && h("span.dim", {}, `/${f.integer(run.total_steps)}`),
    ]),
    sort: (run) => progress(run),
  },
  { ...metricColumn("train/loss", "loss", f.number), key: "loss" },
  {
    key: "trend",
    title: "trend",
    hint: "train/loss over the run so far",
    cell: (run) => sparkline(run.trend, `train/loss of ${run.name}`) ?? h("span.dim", {}, f.NONE),
  },
  { ...metricColumn("val/loss", "val", f.number), key: "val" },
  { ...metricColumn("tokens_per_s", "tok/s", f.si), key: "tokens" },
  metricColumn("mfu", "MFU", f.percent),
  {
    key: "eta",
    title: "ETA",
    num: true,
    cell: (run) => f.duration(run.eta_s),
    sort: (run) => run.eta_s,
  },
  { key: "gpus", title: "GPUs", num: true, cell: gpus, sort: (run) => run.gpus },
  {
    key: "tags",
    title: "tags",
    cell: (run) => run.tags.length > 0 && h(
      "span", { title: run.tags.join(", ") }, run.tags.map((tag) => h("span.tag", {}, tag)),
    ),
    sort: (run) => run.tags.join(" ") || null,
  },
  { key: "submitted", title: "submitted", cell: (run) => f.time(run.created_at), sort: (run) => run.created_at },
  { key: "project", title: "project", off: true, cell: (run) => run.project, sort: (run) => run.project },
  { key: "id", title: "id", off: true, cell: (run) => h("span.mono", {}, run.id), sort: (run) => run.id },
  {
    key: "params",
    title: "parameters",
    off: true,
    num: true,
    cell: (run) => f.si(run.parameters),
    sort: (run) => run.parameters,
  },
  { key: "where", title: "where", off: true, cell: (run) => where(run) ?? f.NONE },
];

/** Return those of these columns in which a run has a value. @param {Column[]} columns @param {RunView[]} runs */
export const withValues = (columns, runs) => columns.filter(
  ({ sort }) => !sort || !runs.length || runs.some((run) => sort(run) !== null)
);

/**
 * Return number, mean and standard deviation of the finite values of a column.
 *
 * @param {Column} column
 * @param {RunView[]} runs
 */
export function spreadOf({ sort }, runs) {
  const values = runs.map((run) => Number(sort?.(run) ?? NaN)).filter(Number.isFinite);
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { n: values.length, mean, sd: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null };
}

/**
 * Return the best value of each column that has a goal; nothing where all are alike.
 *
 * @param {Column[]} columns
 * @param {RunView[]} runs
 * @returns {Map<string, number>} by key
 */
export function bestOf(columns, runs) {
  return new Map(columns.filter(({ goal }) => goal).flatMap(({ key, goal = 0, sort }) => {
    const values = runs.map((run) => Number(sort?.(run) ?? NaN)).filter(Number.isFinite);
    return new Set(values).size > 1 ? [[key, goal * Math.max(...values.map((value) => value * goal))]] : [];
  }));
}

/**
 * Part columns from those whose values are all the same, which one line can say.
 *
 * @param {Column[]} columns
 * @param {RunView[]} runs
 * @param {(column: Column) => boolean} stays
 * @returns {{differ: Column[], alike: Column[]}}
 */
export function parted(columns, runs, stays) {
  const alike = columns.filter((column) => {
    const first = runs.length > 1 && !stays(column) ? (column.sort?.(runs[0]) ?? null) : null;
    return first !== null && runs.every((run) => column.sort?.(run) === first);
  });
  return { differ: columns.filter((column) => !alike.includes(column)), alike };
}
