/** The columns of the runs table. */

import { sparkline } from "../charts/drawing.js";
import { h, s } from "../dom.js";
import * as f from "../format.js";
import { REFERENCE } from "../run/tags_archive.js";
import { progress, runReason, runState, stateMark } from "../status.js";
/** @import { RunView } from "../types.js" */

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} title
 * @property {string} [hint]
 * @property {boolean} [num]
 * @property {boolean} [off] hidden by default
 * @property {boolean} [main] the first of a row on a phone, and bold in a rail
 * @property {boolean} [setting] of the config
 * @property {(value: number) => string} [mean] of a metric: writes the mean of a group
 * @property {string} [metric] whose value it is
 * @property {number} [goal] of a metric: 1 where the highest value is the best, -1 where the lowest is
 * @property {(run: RunView) => import("../dom.js").Child} cell
 * @property {(run: RunView) => number | string | null} [sort]
 * @property {(launch: any, runs: RunView[]) => import("../dom.js").Child} [whole] what the row of a sweep or a rollout
 *   shows of it, by its view and its runs that are here; of hours, also that of another group
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
  key: name, title, hint: `${name}, last`, num: true, mean, metric: name,
  goal: LOWER.test(name) ? -1 : Number(HIGHER.test(name)),
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

/**
 * Return the column of such a value: `best:NAME` or `versus:NAME`.
 *
 * @type {(name: string, valueOf: (run: RunView) => unknown) => Column}
 */
export function judgedColumn(name, valueOf) {
  const [kind, metric] = name.split(/:(.*)/);
  const short = metric.replace(/^val\/loss$/, "val");
  return kind === "best"
    ? {
      ...metricColumn(name, `best ${short}`, f.number, valueOf), metric, hint: `${metric}, the best`,
      whole: (launch) => (launch.metric === metric ? f.number(launch.best_value) : null),
    }
    : {
      ...metricColumn(name, short === "val" ? "vs ★" : `${short} vs ★`, f.signed, valueOf), metric,
      hint: `${metric}, less that of the project's reference run at equal tokens`,
    };
}

/** What sweeps minimize or maximize, by their ids. @type {Map<string | null, string>} */
export const metricOf = new Map();
/** @param {RunView} run */
const measured = (run) => f.fromWire(run.latest[metricOf.get(run.sweep_id) ?? "val/loss"]?.value ?? null);

/** @param {import("../types.js").SweepView} sweep */
export const bestOfSweep = ({ best_parameters: at, best_value: value, metric, held_out: set, held_out_note: note }) => (
  set === "different" ? h("span.dim", { title: note }, "different held-out sets")
    : at && [h("b", {}, f.metric(metric, value)), h("span.dim.point", {}, f.atPoint(at))]
);

const [WIDTH, HEIGHT, PAD, FAR] = [168, 20, 3, 4];

/**
 * Draw trials as dots: their values over the first parameter, if it has numbers. What has none and is over is a cross,
 * what is far worse than the median is at the upper edge.
 *
 * @param {import("../types.js").SweepView} sweep
 * @param {RunView[]} runs
 */
export function trialDots(sweep, runs) {
  const path = sweep.parameters.find((one) => !f.isSeed(one)) ?? "";
  const numbers = runs.map((run) => Number(run.parameters_varied[path] ?? NaN));
  const given = numbers.every(Number.isFinite) ? numbers : runs.map((_, i) => -i);
  const logarithmic = Math.min(...given) > 0 && Math.max(...given) / Math.min(...given) >= 4;
  const at = given.map((value) => (logarithmic ? Math.log(value) : value));
  const [left, right] = [Math.min(...at), Math.max(...at)];
  const sign = sweep.goal === "maximize" ? -1 : 1;
  const values = runs.map((run) => sign * (measured(run) ?? NaN));
  const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
  const [low = 0, middle = low] = [sorted[0], sorted[sorted.length >> 1]];
  const high = Math.min(sorted.at(-1) ?? low, low + FAR * (middle - low || 1));
  /** @type {(v: number, from: number, to: number) => number} */
  const part = (v, from, to) => (v - from) / (to - from || 1);
  const x = (/** @type {number} */ i) => PAD + (left === right ? 0.5 : part(at[i], left, right)) * (WIDTH - 2 * PAD);
  const y = (/** @type {number} */ v) => {
    const height = part(Math.min(v, high), low, high) * (HEIGHT - 2 * PAD);
    return sign > 0 ? HEIGHT - PAD - height : PAD + height;
  };
  const label = `${sorted.length} of ${runs.length} trials have a value, over ${path}`;
  return runs.length > 0 && s(
    "svg", { class: "spark trial-dots", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    runs.map(({ ended_at: ended }, i) => {
      if (!Number.isFinite(values[i])) return ended && s("path", { class: "broken", d: `M${x(i) - 2} 1l4 4m0-4l-4 4` });
      const best = values[i] === low;
      const [cx, cy] = [x(i), y(values[i])].map((v) => v.toFixed(1));
      return s("circle", { cx, cy, r: best ? 2.5 : 1.5, class: best && "last" });
    }),
  );
}

/** @param {import("../types.js").RolloutView} rollout */
const stages = ({ progress: all }) => h("ol.progress-stages.plain", {}, Object.entries(all).map(([name, state]) => h(
  "li", { title: `${name}: ${state}` },
  stateMark(state, name.replaceAll("_", " ").replace(
    /\b(gpus?|cpu)\b/g, (word) => word.toUpperCase().replace("GPUS", "GPUs"),
  )),
  h("span.unseen", {}, ` ${state}`),
)));

/**
 * Return the GPU-hours used until now: they grow while GPUs are held.
 *
 * @type {(used: {gpu_hours: number, until: number | null} | null, runs: RunView[]) => number | null}
 */
export function gpuHours(used, runs) {
  const held = runs.reduce((sum, run) => sum + (run.ended_at === null ? run.placement.length : 0), 0);
  const since = used?.until ? Math.max(0, Date.now() / 1000 - used.until) : 0;
  return used && used.gpu_hours + (held * since) / 3600;
}
/** @param {RunView} run */
const ownHours = (run) => gpuHours(run.used, [run]);
/** @param {number | null} value */
const hours = (value) => (value && value < 0.01 ? "< 0.01" : f.number(value, 3));
/** @param {RunView} run */
const varied = ({ parameters_varied: values }) => f.atPoint(values).replace(/^ at /, "");
const COUNTED = "GPU-hours: GPUs of each attempt x time from its start to its end; queue and pauses hold none";

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
  { ...metricColumn("val/loss", "val", f.number), key: "val" },
  { ...metricColumn("train/loss", "loss", f.number), key: "loss" },
  {
    key: "trend", title: "trend", hint: "train/loss over the run so far",
    cell: (run) => sparkline(run.trend, `train/loss of ${run.name}`) ?? h("span.dim", {}, f.NONE),
  },
  { ...metricColumn("tokens_per_s", "tok/s", f.si), key: "tokens" },
  metricColumn("mfu", "MFU", f.percent),
  { key: "eta", title: "ETA", num: true, cell: (run) => f.duration(run.eta_s), sort: (run) => run.eta_s },
  { key: "gpus", title: "GPUs", num: true, cell: gpus, sort: (run) => run.gpus },
  {
    key: "tags", title: "tags", sort: ({ tags }) => tags.join(" ") || null, cell: ({ tags }) => tags.length > 0
      && h("span", { title: tags.join(", ") }, tags.map((tag) => h("span.tag", {}, tag))),
  },
  {
    ...metricColumn("", "best", f.number, measured), key: "best", num: false, off: true, whole: bestOfSweep,
    hint: "Best value of the metric of the sweep, and where it is; of a run, the newest",
  },
  {
    key: "trials", title: "trials", off: true, whole: trialDots, hint: "Values of the trials over the first parameter",
    cell: (run) => sparkline(run.trend, `train/loss of ${run.name}`),
  },
  {
    key: "over", title: "over", off: true, cell: varied,
    whole: ({ parameters }) => h("span.dim", {}, parameters?.join(" × ")),
  },
  { key: "stages", title: "stages", off: true, cell: () => null, whole: stages },
  {
    key: "hours", title: "GPU-h", off: true, num: true, hint: COUNTED, sort: ownHours,
    cell: (run) => hours(ownHours(run)),
    whole: (launch, runs) => hours(
      launch ? gpuHours(launch.used ?? launch.cost, runs) : runs.reduce((sum, run) => sum + (ownHours(run) ?? 0), 0),
    ),
  },
  {
    key: "submitted", title: "submitted", cell: (run) => f.time(run.created_at), sort: (run) => run.created_at,
    whole: ({ created_at: at }) => f.time(at),
  },
  {
    key: "project", title: "project", off: true, cell: (run) => run.project, sort: (run) => run.project,
    whole: ({ project }) => project,
  },
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

/** By metric, the runs that the server leaves out of the means of their groups. @type {Map<string, string[]>} */
export const farOf = new Map();

/**
 * Return number, mean and standard deviation of the finite values of a column, and who is far: left out of them.
 *
 * @param {Column} column
 * @param {RunView[]} runs
 */
export function spreadOf({ key, metric = "", sort }, runs) {
  const out = new Set(key.startsWith("best:") ? [] : farOf.get(metric));
  const far = runs.filter(({ id }) => out.has(id));
  const values = runs.filter((run) => !far.includes(run)).map((run) => Number(sort?.(run) ?? NaN))
    .filter(Number.isFinite);
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { n: values.length, mean, sd: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null, far };
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
