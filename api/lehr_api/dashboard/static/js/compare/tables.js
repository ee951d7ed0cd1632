/** The tables of a comparison: notes, groups, results, and differences of the configs. */

import { swatch } from "../charts/drawing.js";
import { dataTable, h } from "../dom.js";
import * as f from "../format.js";
import { separating, shortName } from "../runs/configs.js";

const NOTES = 3;
const OTHER_SETS = "Curves under val/ are from different held-out sets and are not comparable.";
const PLUS_MINUS = "± is half of the 95 % interval, from the noise between seeds.";

/** @param {HTMLElement[]} more */
const folded = (more) => more.length > 0 && h("details", {}, h("summary.dim", {}, `${more.length} more`), more);

/** Whether a note is about two runs, and no others. @param {string} note @param {string[]} pair their names */
const isOf = (note, [first, second]) => note.startsWith(`${first} and ${second} `);

/** Whether there are several variants: rows say how they compare. @param {{gaps: unknown[]}} comparison */
export const areSeveral = ({ gaps }) => gaps.length > 1;

/** @param {import("../types.js").ComparisonView} comparison @param {(id: string) => string} name */
export function notesOf(comparison, name) {
  const { runs, notes, means, noise, batches_note: batches, held_out: heldOut } = comparison;
  const ofRow = (/** @type {string} */ note) => runs.some((id) => isOf(note, [name(runs[0]), name(id)]));
  const left = runs.length > 2 ? notes.filter((note) => !ofRow(note)) : notes;
  return [
    left.slice(0, NOTES).map((note) => h("div.alert", {}, note)),
    folded(left.slice(NOTES).map((note) => h("div.alert", {}, note))),
    heldOut === "different" && h("div.alert", {}, OTHER_SETS),
    runs.length === 2 && h("p.note", {}, `Batches: ${batches}.`),
    !areSeveral(comparison) && [
      means.map((mean) => h("p.note", {}, mean)),
      noise !== null && h("p.hint", {}, PLUS_MINUS),
      noise !== null && h("p.note", {}, `Noise between seeds: ${f.number(noise)}.`),
    ],
  ];
}

/** @param {import("../types.js").ComparisonView} comparison */
export const batchesChip = ({ batches, batches_note: note }) => batches !== "same" && h(
  "details.menu.chip", {}, h("summary", {}, `⚠ batches ${batches === "unknown" ? "not known" : "differ"}`),
  h("div.menu-list", {}, `Batches: ${note}.`),
);

/**
 * Return why the difference of a run from the baseline proves little.
 *
 * @param {import("../types.js").ComparisonView} comparison @param {string} id @param {(id: string) => string} name
 */
export function cautionOf({ runs, notes, results }, id, name) {
  const from = results.find((one) => one.run_id === id)?.batches_differ_from ?? null;
  const [base, step] = [name(runs[0]), f.integer(from)];
  const batches = from === null ? [] : [`Other batches than those of ${base} from step ${step} on.`];
  return [...notes.filter((note) => isOf(note, [base, name(id)])), ...batches].join(" ");
}

/** By how many factors a run is described. */
const FACTORS = 4;

/** The paths by which the runs of a comparison are described. @type {WeakMap<object, string[]>} */
const labels = new WeakMap();

/**
 * Return the factors that tell the runs apart, and the seed, each with its values by run.
 *
 * @param {import("../types.js").ComparisonView} comparison
 * @param {string[]} [more] paths of others to return after them
 */
export function settingsOf(comparison, more = []) {
  const valuesOf = (/** @type {string} */ path) =>
    comparison.differences.find((one) => one.path === path)?.values ?? [];
  const rank = (/** @type {string} */ path) => Number(f.isSeed(path));
  const all = comparison.differences.filter((one) => one.factor || f.isSeed(one.path)).map((one) => one.path);
  const apart = labels.get(comparison)
    ?? separating(all.sort((a, b) => rank(a) - rank(b)), rank, valuesOf).slice(0, FACTORS);
  labels.set(comparison, apart);
  const paths = [...new Set([...apart, ...more])];
  return paths.map((path) => ({ path, short: shortName(path, paths), values: valuesOf(path) }));
}

/** Describe a run by them. @param {import("../types.js").ComparisonView | null} comparison @param {string} id */
export function factorsOf(comparison, id) {
  const column = comparison?.runs.indexOf(id) ?? -1;
  if (!comparison || column < 0) return "";
  return settingsOf(comparison).map(({ path, short, values }) => `${short} ${f.specValue(values[column], path)}`)
    .join(" · ");
}

/**
 * @param {import("../types.js").RunGroupView[]} groups the first is the baseline
 * @param {string} metric
 * @param {string} where
 * @param {(group: string) => import("../colour.js").Stroke} strokeOf
 * @param {(id: string) => string} nameOf of a run
 * @param {ReturnType<typeof import("./ranking.js").rankingOf>["plot"]} [plot]
 */
export function groupTable(groups, metric, where, strokeOf, nameOf, plot) {
  const column = (/** @type {string} */ text, /** @type {string} */ hint) =>
    h("th.num", { scope: "col", title: hint }, text);
  const mean = "mean of the runs, ± their standard deviation";
  const heads = [
    "", "group", ...(plot ? [plot.head(mean)] : []), column("runs", "of which so many have a value, none far worse than the others"),
    column(`${metric} at ${where}`, mean), column("to the first group", "difference of the means"),
  ];
  return dataTable("Groups", heads, groups.map(({ name, run_ids: ids, count, far, mean: value, deviation = null }) => h(
    "tr",
    { key: name },
    h("td.shrink", {}, swatch(strokeOf(name))),
    h("td", {}, h("b", {}, name)),
    plot?.cell(value, strokeOf(name).colour, deviation),
    h(
      "td.num", { title: `mean of ${count}${f.farNote((far ?? []).map(nameOf))}` },
      count === ids.length ? f.integer(count) : `${count} of ${ids.length}`,
    ),
    h("td.num", {}, f.metric(metric, value), deviation !== null && h(
      "span.dim", {}, ` ± ${f.metric(metric, deviation)}`,
    )),
    h("td.num", {}, name !== groups[0].name && f.change(value, groups[0].mean, metric)),
  )));
}
