/** Which x axes a page can offer: a program need not declare tokens, and their cost may not be known. */

/** @typedef {Pick<import("../types.js").RunView, "tokens_per_step" | "flops_per_token">} Counted */

/**
 * Return why an x axis would show nothing of its own; null if it can be chosen.
 *
 * @param {string} x
 * @param {Counted[]} runs those that are drawn
 */
export function whyNot(x, runs) {
  if (!runs.length) return null;
  // A program that declares no tokens counts one per step: the axis would only repeat the steps.
  if (x === "tokens" && runs.every((run) => run.tokens_per_step <= 1)) {
    return "No tokens are known. A program declares them as trainer.tokens_per_step.";
  }
  if (x === "flops" && runs.every((run) => (run.flops_per_token ?? null) === null)) {
    return "The FLOPs per token are not known: for a program, and while the sequence length changes.";
  }
  return null;
}
