/** The rows of the runs table: runs, and sweeps that fold their trials. */

import { byNumber } from "../charts/metric_groups.js";
import { checkbox, h } from "../dom.js";
import { atPoint, isSeed, metric } from "../format.js";
import { countsLine } from "../status.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {{kind: "run", run: RunView, member: boolean} | {kind: "sweep", id: string, runs: RunView[], open: boolean,
 *   curve: RunView | null}} Item
 *   `curve`: the run whose curve stands for a folded sweep
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

/** Return the runs that have a row: the trials of a folded sweep have none. @param {Item[]} items */
export const withRows = (items) => items.flatMap((item) => (item.kind === "run" ? [item.run] : []));

/** Return the runs whose curves the rows stand for. @param {Item[]} items */
export const withCurves = (items) => items.flatMap((item) => (item.kind === "run" ? item.run : item.curve) ?? []);

/**
 * @param {RunView[]} runs in the order of the table
 * @param {(sweep: string) => boolean} isOpen
 * @param {(sweep: string) => string | null | undefined} bestOf the best trial; without one, the first with a step
 *   stands for it
 * @returns {Item[]} each sweep at the place of its first run
 */
export function grouped(runs, isOpen, bestOf) {
  /** @type {Map<string, RunView[]>} */
  const members = new Map();
  for (const run of runs) {
    if (run.sweep_id) members.set(run.sweep_id, [...(members.get(run.sweep_id) ?? []), run]);
  }
  /** @type {Item[]} */
  const result = [];
  for (const run of runs) {
    if (!run.sweep_id) {
      result.push({ kind: "run", run, member: false });
      continue;
    }
    const group = members.get(run.sweep_id);
    if (!group) continue;
    members.delete(run.sweep_id);
    const open = isOpen(run.sweep_id);
    const best = bestOf(run.sweep_id);
    const curve = open ? undefined : (group.find(({ id }) => id === best) ?? group.find(({ step }) => step !== null));
    result.push({ kind: "sweep", id: run.sweep_id, runs: group, open, curve: curve ?? null });
    if (!open) continue;
    // Show trials in the order of the grid, not newest first.
    for (const member of [...group].sort((a, b) => byNumber(a.name, b.name))) {
      result.push({ kind: "run", run: member, member: true });
    }
  }
  return result;
}

/** @typedef {import("../types.js").SweepView} SweepView */

/**
 * @param {string} id
 * @param {RunView[]} runs those of its trials that the table shows
 * @param {SweepView | undefined} sweep undefined until its view is here
 * @param {{open: boolean, columns: number, curve: RunView | null, mark: HTMLElement | null | undefined, isSelected:
 *   (run: RunView) => boolean,
 * onSelect: (yes: boolean) => void, onToggle: () => void}} options `curve`: the run whose curve stands for it; `mark`:
 * that of this curve
 */
export function sweepRow(id, runs, sweep, { open, columns, curve, mark, isSelected, onSelect, onToggle }) {
  /** @type {Record<string, number>} */
  const counts = sweep?.counts ?? {};
  if (!sweep) for (const run of runs) counts[run.state] = (counts[run.state] ?? 0) + 1;
  const size = Object.values(counts).reduce((a, b) => a + b, 0);
  const name = sweep?.name ?? runs[0].name.replace(/-\d+$/, "");
  const all = runs.every(isSelected);
  return h(
    "tr.group",
    { "data-sweep": id, "data-curve": curve?.id },
    h("td.shrink", {}, h("label.box", {}, checkbox(all, onSelect, {
      "aria-label": `Select the runs of ${name}`, indeterminate: !all && runs.some(isSelected),
    })), mark),
    h(
      "td.col-name",
      {},
      h(
        "button.twist",
        {
          type: "button", "aria-expanded": String(open), "aria-label": `${open ? "Fold" : "Unfold"} ${name}`,
          onclick: onToggle,
        },
        open ? "▾" : "▸",
      ),
      h("a.name", { href: `/sweeps/${id}`, title: name }, name),
      h("span.dim", {}, runs.length < size ? ` (${runs.length} of ${size})` : ` (${size})`),
    ),
    h(
      "td",
      { colspan: String(columns - 1) },
      countsLine(counts),
      sweep?.held_out === "different"
        && h("span.reason", { title: sweep.held_out_note }, "no best: different held-out sets"),
      sweep?.best_parameters && h(
        "span.reason", {}, "best ", h("b", {}, metric(sweep.metric, sweep.best_value)), atPoint(sweep.best_parameters),
      ),
    ),
  );
}
