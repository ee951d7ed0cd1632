/** The columns of the runs table. */

import { sparkline } from "../charts/drawing.js";
import { h } from "../dom.js";
import * as f from "../format.js";
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
 * @property {(run: RunView) => import("../dom.js").Child} cell
 * @property {(run: RunView) => number | string | null} [sort]
 */

/** @param {RunView} run @param {string} name */
const latest = (run, name) => f.fromWire(run.latest[name]?.value ?? null);

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

/** @type {Column[]} */
export const COLUMNS = [
  {
    key: "name",
    title: "name",
    cell: (run) => h("a.name", { href: `/runs/${run.id}`, title: run.name }, run.name),
    sort: (run) => run.name,
  },
  {
    key: "state",
    title: "state",
    cell: (run) => {
      const reason = runReason(run);
      return [
        runState(run),
        run.alerts.length > 0 && h("span.warn", { title: run.alerts.join("\n") }, `  ⚠ ${run.alerts.length}`),
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
  {
    key: "loss",
    title: "loss",
    hint: "train/loss, last",
    num: true,
    cell: (run) => f.number(run.latest["train/loss"]?.value),
    sort: (run) => latest(run, "train/loss"),
  },
  {
    key: "trend",
    title: "trend",
    hint: "train/loss over the run so far",
    cell: (run) => sparkline(run.trend, `train/loss of ${run.name}`) ?? h("span.dim", {}, f.NONE),
  },
  {
    key: "val",
    title: "val",
    hint: "val/loss, last",
    num: true,
    cell: (run) => f.number(run.latest["val/loss"]?.value),
    sort: (run) => latest(run, "val/loss"),
  },
  {
    key: "tokens",
    title: "tok/s",
    hint: "tokens_per_s, last",
    num: true,
    cell: (run) => f.si(run.latest.tokens_per_s?.value),
    sort: (run) => latest(run, "tokens_per_s"),
  },
  {
    key: "mfu",
    title: "MFU",
    num: true,
    cell: (run) => f.percent(run.latest.mfu?.value),
    sort: (run) => latest(run, "mfu"),
  },
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
    key: "grad",
    title: "grad norm",
    off: true,
    num: true,
    cell: (run) => f.number(run.latest["train/grad_norm"]?.value),
    sort: (run) => latest(run, "train/grad_norm"),
  },
  {
    key: "lr",
    title: "lr now",
    off: true,
    num: true,
    cell: (run) => f.scientific(run.latest["train/lr"]?.value),
    sort: (run) => latest(run, "train/lr"),
  },
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
