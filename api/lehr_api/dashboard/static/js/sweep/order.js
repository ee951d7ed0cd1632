/** The order of a sweep's trials in its table. */

/**
 * The trials, best first: ranked ones, then those that may still be ranked, then the rest.
 *
 * @param {import("../types.js").TrialView[]} trials
 */
export function inOrder(trials) {
  const late = (/** @type {import("../types.js").TrialView} */ trial) => (trial.rank !== null ? 0 : ["failed", "cancelled", "pruned"].includes(trial.run.state) ? 2 : 1);
  return [...trials].sort((a, b) => late(a) - late(b) || (a.rank ?? 0) - (b.rank ?? 0) || a.number - b.number);
}
