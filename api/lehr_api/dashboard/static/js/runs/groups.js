/** The rows of the runs table: runs, and sweeps that fold their trials. */

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {{kind: "run", run: RunView, member: boolean} | {kind: "sweep", id: string, runs: RunView[], open: boolean}} Item
 */

/** The most trials with which the newest sweep is expanded: most users look for it. */
const SMALL_SWEEP = 16;

/**
 * Return the newest sweep among these runs, if it is small.
 *
 * @param {RunView[]} runs newest first
 */
export function newestSweep(runs) {
  const id = runs.find((run) => run.sweep_id)?.sweep_id ?? "";
  return id && runs.filter((run) => run.sweep_id === id).length <= SMALL_SWEEP ? id : "";
}

/** Return the runs that have a row: the trials of a folded sweep have none. @param {Item[]} items */
export const withRows = (items) => items.flatMap((item) => (item.kind === "run" ? [item.run] : []));

/**
 * @param {RunView[]} runs in the order of the table
 * @param {(sweep: string) => boolean} isOpen
 * @returns {Item[]} each sweep at the place of its first run
 */
export function grouped(runs, isOpen) {
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
    result.push({ kind: "sweep", id: run.sweep_id, runs: group, open });
    if (!open) continue;
    // Show trials in the order of the grid, not newest first.
    for (const member of [...group].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }))) {
      result.push({ kind: "run", run: member, member: true });
    }
  }
  return result;
}
