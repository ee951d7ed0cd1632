/** Order the trials of a sweep for its table. */

/**
 * Return the trials, best first: ranked, then not ranked yet, then ended without a rank.
 *
 * @param {import("../types.js").TrialView[]} trials
 */
export function inOrder(trials) {
  const late = (/** @type {import("../types.js").TrialView} */ trial) => (
    trial.rank !== null ? 0 : ["failed", "cancelled", "pruned"].includes(trial.run.state) ? 2 : 1
  );
  return [...trials].sort((a, b) => late(a) - late(b) || (a.rank ?? 0) - (b.rank ?? 0) || a.number - b.number);
}
