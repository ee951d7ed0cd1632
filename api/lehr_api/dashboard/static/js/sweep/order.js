/** The order of a sweep's cells in its table. */

/**
 * The cells, best first: ranked ones, then those that may still be ranked, then the rest.
 *
 * @param {import("../types.js").CellView[]} cells
 */
export function inOrder(cells) {
  const late = (/** @type {import("../types.js").CellView} */ cell) => (cell.rank !== null ? 0 : ["failed", "cancelled", "pruned"].includes(cell.run.state) ? 2 : 1);
  return [...cells].sort((a, b) => late(a) - late(b) || (a.rank ?? 0) - (b.rank ?? 0) || a.number - b.number);
}
