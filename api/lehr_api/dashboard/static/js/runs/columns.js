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
 * Return the column of a metric's newest value, which `mean` writes.
 *
 * @type {(name: string, title?: string, mean?: (v: any) => string, valueOf?: (run: RunView) => unknown) => Column}
 */
export const metricColumn = (
  name, title = name, mean = (value) => f.metric(name, value), valueOf = (run) => run.latest[name]?.value,
) => ({
  key: name, title, hint: `${name}, last`, num: true, mean, goal: LOWER.test(name) ? -1 : Number(HIGHER.test(name)),
  cell: (run) => mean(valueOf(run)), sort: (run) => f.fromWire(valueOf(run) ?? null),
});

/** @param {RunView} run */
function where({ placement, nodes }) {
  const held = placement.map((one) => one.gpu);
  if (placement.some(({ node }) => node !== placement[0].node)) return `${held.length} on ${nodes} nodes`;
  return held.length ? `${placement[0].node}:${held.length > 2 ? `${held[0]}–${held.at(-1)}` : held}` : null;
}

/** @param {RunView} run */
const gpus = (run) => h("span", { title: where(run) }, `${run.gpus}${run.gpu_type ? `×${run.gpu_type}` : ""}`);

/** What the server computes of each run: the best value, and the difference to the reference of its project. */
export const JUDGED = ["best:val/loss", "versus:val/loss"];
const VERSUS = "val/loss, less that of the project's reference run at equal tokens";

/** @param {string} name one of those @param {(run: RunView) => unknown} valueOf @returns {Column} */
export const judgedColumn = (name, valueOf) => (name === JUDGED[0]
  ? { ...metricColumn(name, "best val", f.number, valueOf), hint: "val/loss, the best" }
  : { ...metricColumn(name, "vs ★", f.signed, valueOf), hint: VERSUS });

/** @type {Column[]} */
export const COLUMNS = [
  {
    key: "name", title: "name", sort: (run) => run.name, cell: (run) => [
      run.tags.includes(REFERENCE) && h("span.star", { title: "the reference of its project" }, "★"),
      h("a.name", { href: `/runs/${run.id}`, title: run.name }, run.name),
    ],
  },
  {
    key: "state", title: "state", sort: (run) => run.state, cell: (run) => {
      const [reason, { alerts }] = [runReason(run), run];
      return [
        runState(run),
        alerts.length > 0 && h("span.warn", { title: alerts.join("\n") }, " ⚠", h("span.n", {}, ` ${alerts.length}`)),
        reason && h("span.reason", { title: reason }, reason),
      ];
    },
  },
  {
    key: "step", title: "step", num: true, sort: progress, cell: (run) => (run.step === null ? f.NONE : [
      f.integer(run.step), run.total_steps > 0 && h("span.dim", {}, `/${f.integer(run.total_steps)}`),
    ]),
  },
  { ...metricColumn("train/loss", "loss", f.number), key: "loss" },
  {
    key: "trend", title: "trend", hint: "train/loss over the run so far",
    cell: (run) => sparkline(run.trend, `train/loss of ${run.name}`) ?? h("span.dim", {}, f.NONE),
  },
  { ...metricColumn("val/loss", "val", f.number), key: "val" },
  { ...metricColumn("tokens_per_s", "tok/s", f.si), key: "tokens" },
  metricColumn("mfu", "MFU", f.percent),
  { key: "eta", title: "ETA", num: true, cell: (run) => f.duration(run.eta_s), sort: (run) => run.eta_s },
  { key: "gpus", title: "GPUs", num: true, cell: gpus, sort: (run) => run.gpus },
  {
    key: "tags", title: "tags", sort: ({ tags }) => tags.join(" ") || null, cell: ({ tags }) => tags.length > 0
      && h("span", { title: tags.join(", ") }, tags.map((tag) => h("span.tag", {}, tag))),
  },
  { key: "submitted", title: "submitted", cell: (run) => f.time(run.created_at), sort: (run) => run.created_at },
  { key: "project", title: "project", off: true, cell: (run) => run.project, sort: (run) => run.project },
  { key: "id", title: "id", off: true, cell: (run) => h("span.mono", {}, run.id), sort: (run) => run.id },
  {
    key: "params", title: "parameters", off: true, num: true, cell: (run) => f.si(run.parameters),
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
    // A step is sorted by the share of the run that is done, and shows more than that.
    const value = (/** @type {RunView} */ run) => (column.key === "step" ? run.step : column.sort?.(run)) ?? null;
    const first = runs.length > 1 && !stays(column) ? value(runs[0]) : null;
    return first !== null && runs.every((run) => value(run) === first);
  });
  return { differ: columns.filter((column) => !alike.includes(column)), alike };
}
