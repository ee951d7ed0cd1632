/** The columns that the runs table is sorted by, as the address has them: `state,-train.optimizer.lr`. */

/** @typedef {{key: string, down: boolean}} Order */

/** @param {string | null} text @returns {Order[]} */
export const ordersOf = (text) => (text ?? "")
  .split(",").filter(Boolean).map((one) => ({ key: one.replace(/^-/, ""), down: one.startsWith("-") }));

/** @param {Order[]} orders @returns {string | null} null for the newest first */
export const textOf = (orders) => orders.map(({ key, down }) => (down ? `-${key}` : key)).join(",") || null;

/**
 * Return the order after a click on the head of a column: rising, falling, then without it.
 *
 * @param {Order[]} orders
 * @param {string} key
 * @param {boolean} more whether the other columns stay
 * @returns {Order[]}
 */
export function pressed(orders, key, more) {
  const kept = more || orders.length < 2 ? orders : [];
  const before = kept.find((one) => one.key === key);
  if (!before) return [...(more ? kept : []), { key, down: false }];
  return before.down
    ? kept.filter((one) => one !== before)
    : kept.map((one) => (one === before ? { key, down: true } : one));
}

/**
 * Return the mark of a column's head: its direction, and its place among several.
 *
 * @param {Order[]} orders
 * @param {string} key
 */
export function markOf(orders, key) {
  const at = orders.findIndex((one) => one.key === key);
  return at < 0 ? "" : ` ${orders[at].down ? "↓" : "↑"}${orders.length > 1 ? at + 1 : ""}`;
}
