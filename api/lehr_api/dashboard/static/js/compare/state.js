/** The state of the comparison page. */

import { read } from "../urlstate.js";

/** The most runs that are compared. */
export const MOST = 200;
/** So many of more runs are shown at first. */
export const FIRST = 30;
/** The runs that the address names. */
export const asked = [...new Set((read("runs") ?? "").split(",").filter(Boolean))];
const chosenMetric = read("metric") ?? "";
/** What the user has chosen, and what the server has answered. */
export const state = {
  ids: asked.slice(0, MOST),
  /** The metric that the user has chosen; "": the server chooses one that all runs have. */
  chosen: chosenMetric,
  metric: chosenMetric || "val/loss",
  /** What the runs are grouped by: fields in which they differ, metrics, "tag" or "project"; "" for each alone. */
  by: read("by") ?? "",
  /** Sorts the table: a column's key, with a minus for falling. */
  order: read("order"),
  /** Whether all runs are shown, and all columns. */
  isAll: false,
  isWide: false,
  /** By run, the slot of its line. */
  slots: /** @type {Map<string, number>} */ (new Map()),
  /** The metrics of the runs. */
  names: /** @type {string[]} */ ([]),
  comparison: /** @type {import("../types.js").ComparisonView | null} */ (null),
};
/** What the address names beyond the most runs. */
export const leftOut = asked.length - state.ids.length;
