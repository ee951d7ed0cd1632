/** The state of the runs page: what the user has chosen, and what of the runs is shown. */

import { memory, read } from "../urlstate.js";
import { COLUMNS } from "./columns.js";
import { parseFilter } from "./filter.js";
import { ordersOf } from "./list.js";

/** @typedef {import("../types.js").RunView} RunView */

/** @returns {string[]} */
function shownKeys() {
  const address = read("cols");
  if (address) return address.split(",");
  return memory.get("columns", COLUMNS.filter((column) => !column.off).map((column) => column.key));
}

export const state = {
  filter: parseFilter(read("filter") ?? ""),
  /** What the table is sorted by; nothing: newest first. */
  orders: ordersOf(read("sort")),
  grouped: read("flat") !== "1",
  /**
   * What the curves are grouped by: paths of the config or their ends, metrics, "tag", "tag:name", "project", with
   * commas.
   */
  by: read("by") ?? "",
  /** The columns of figures that every run has. */
  base: COLUMNS.filter((column) => shownKeys().includes(column.key) || column.key === "name"),
  /** Names of chosen columns for configs and metrics; null for what differs. */
  chosen: read("values"),
  /** The paths by which the shown runs differ. */
  varying: /** @type {string[]} */ ([]),
  /** All columns in their order. */
  columns: /** @type {import("./columns.js").Column[]} */ ([]),
  beside: /** @type {import("./beside.js").Beside | null} */ (null),
  /** The sweeps that are unfolded by themselves. */
  usual: /** @type {Set<string>} */ (new Set()),
  /** The runs that the filter lets through, in the order of the table. */
  shown: /** @type {RunView[]} */ ([]),
  items: /** @type {import("./groups.js").Item[]} */ ([]),
  /** The runs that have a row: columns tell them apart. */
  listed: /** @type {RunView[]} */ ([]),
  /** The runs whose differences were looked for. */
  looked: "",
  /** Whether the first answer is here. */
  loaded: false,
};
