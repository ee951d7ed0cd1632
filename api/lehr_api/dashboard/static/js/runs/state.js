/** The state of the runs page: what the user has chosen, and what of the runs is shown. */

import { memory, read } from "../urlstate.js";
import { COLUMNS } from "./columns.js";
import { parseFilter } from "./filter.js";
import { ordersOf } from "./list.js";
/** @import { RunView } from "../types.js" */

/** "sweep" and "rollout" where the page lists these; "" where it lists all runs. */
export const SECTION = /^\/(sweep|rollout)s$/.exec(location.pathname)?.[1] ?? "";
/** @param {string} key of what this browser remembers, for each section by itself */
export const ownKey = (key) => (SECTION ? `${key}-${SECTION}` : key);
const own = SECTION === "sweep" ? ["best", "trials", "over"] : ["stages"];
const usual = SECTION
  ? ["state", ...own, "hours", "project", "submitted"]
  : COLUMNS.filter(({ off }) => !off).map(({ key }) => key);
const shown = read("cols")?.split(",") ?? memory.get(ownKey("columns"), usual);

export const state = {
  filter: parseFilter(read("filter") ?? ""),
  /** What the table is sorted by; nothing: newest first. */
  orders: ordersOf(read("sort")),
  /** What rows are grouped by: "sweep", "rollout", or keys of /values with commas; "" for nothing. */
  by: read("flat") === "1" || read("by") === "none" ? "" : (read("by") ?? (SECTION || "sweep")),
  /** The setting or metric that colours show; "" for a colour for each row. */
  colour: read("colour") ?? "",
  /** The columns of figures that every run has. */
  base: COLUMNS.filter(({ key }) => shown.includes(key) || key === "name"),
  /** Names of chosen columns for configs and metrics; null for what differs. */
  chosen: read("values") ?? (SECTION ? "none" : null),
  /** The paths by which the shown runs differ. */
  varying: /** @type {string[]} */ ([]),
  /** The best values of columns, by key. */
  best: /** @type {Map<string, number>} */ (new Map()),
  /** The columns of which all shown values are the same. */
  alike: /** @type {import("./columns.js").Column[]} */ ([]),
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
  /** The columns and best values that are drawn. */
  looks: "",
  /** Whether the first answer is here. */
  loaded: false,
};
