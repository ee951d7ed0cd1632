/** The tables of a comparison: notes, groups, results, and differences of the configs. */

import { get } from "../api.js";
import { swatch } from "../charts/drawing.js";
import { dataTable, h } from "../dom.js";
import { acts } from "../form.js";
import * as f from "../format.js";
import { repeat } from "../run/fork.js";
import { separating, shortName } from "../runs/configs.js";
import { runState } from "../status.js";

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

/** Further columns of the table: [field of a standing, title, explanation, metric that formats it]. */
export const BESIDES = /** @type {const} */ ([
  ["tokens_per_s", "median tok/s", "over the run", "tokens_per_s"],
  ["mfu", "MFU", "median over the run, of the GPUs' dense peak", "mfu"],
  ["step_time_s", "median step", "time of a step over the run", "step_time_s"],
  ["memory_bytes", "memory", "highest of one GPU; on a CPU, of the process", "memory/peak_bytes"],
]);

/** The paths by which the runs of a comparison are described. @type {WeakMap<object, string[]>} */
const labels = new WeakMap();

/**
 * Return the factors that tell the runs apart, and the seed, each with its values by run.
 *
 * @param {import("../types.js").ComparisonView} comparison
 */
export function settingsOf(comparison) {
  const valuesOf = (/** @type {string} */ path) =>
    comparison.differences.find((one) => one.path === path)?.values ?? [];
  const rank = (/** @type {string} */ path) => Number(f.isSeed(path));
  const all = comparison.differences.filter((one) => one.factor || f.isSeed(one.path)).map((one) => one.path);
  const paths = labels.get(comparison)
    ?? separating(all.sort((a, b) => rank(a) - rank(b)), rank, valuesOf).slice(0, FACTORS);
  labels.set(comparison, paths);
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
 * @param {ReturnType<typeof import("./ranking.js").rankingOf>["plot"]} [plot]
 */
export function groupTable(groups, metric, where, strokeOf, plot) {
  const column = (/** @type {string} */ text, /** @type {string} */ hint) =>
    h("th.num", { scope: "col", title: hint }, text);
  const mean = "mean of the runs, ± their standard deviation";
  const heads = [
    "", "group", ...(plot ? [plot.head(mean)] : []), column("runs", "of which so many have a value, none far worse than the others"),
    column(`${metric} at ${where}`, mean), column("to the first group", "difference of the means"),
  ];
  return dataTable("Groups", heads, groups.map(({ name, run_ids: ids, count, mean: value, deviation = null }) => h(
    "tr",
    { key: name },
    h("td.shrink", {}, swatch(strokeOf(name))),
    h("td", {}, h("b", {}, name)),
    plot?.cell(value, strokeOf(name).colour, deviation),
    h("td.num", {}, count === ids.length ? f.integer(count) : `${count} of ${ids.length}`),
    h("td.num", {}, f.metric(metric, value), deviation !== null && h(
      "span.dim", {}, ` ± ${f.metric(metric, deviation)}`,
    )),
    h("td.num", {}, name !== groups[0].name && f.change(value, groups[0].mean, metric)),
  )));
}

/** @param {string | null} text */
const delta = (text) => (text === null ? null : h("span.delta", {}, text));

/** A smaller share of a speed or of the memory is not worth its room. */
const NOTABLE = 0.01;

/**
 * The difference of a speed or of the memory as a share, unless it is less than 1 %.
 *
 * @param {unknown} value
 * @param {unknown} base
 */
export function notable(value, base) {
  const [one, other] = [value, base].map((v) => (typeof v === "number" ? v : NaN));
  return Math.abs(one / other - 1) >= NOTABLE ? delta(f.change(value, base, null)) : null;
}

/**
 * @param {import("../types.js").RunResultView | undefined} standing
 * @param {import("../types.js").RunResultView | undefined} base
 * @param {string} metric
 */
export function besideBaseline(standing, base, metric) {
  if (standing?.incomparable) return h("span.delta.incomparable", {}, standing.incomparable);
  return delta(f.change(standing?.value, base?.value, metric));
}

/**
 * @typedef {import("../types.js").RunResultView} RunResultView
 *
 * @typedef {object} Shown what the row shows besides the run
 * @property {RunResultView | undefined} result @property {string} metric @property {any} swatch
 * @property {RunResultView | null | undefined} base the baseline's result; null for the baseline itself
 * @property {typeof BESIDES[number][]} besides further columns
 * @property {string} factors the settings in which it differs
 * @property {import("../types.js").MetricInfo | undefined} info
 * @property {unknown} best @property {boolean} isBest whether no other run has a better one
 * @property {() => void} onBaseline
 * @property {(() => void) | null} onTakeOut null where too few would be left
 * @property {boolean} ofState whether it shows the state @property {boolean} ofLast whether it shows the newest value
 * @property {{settings: HTMLElement[], plot: HTMLElement, caution: string, say: () => void} | null} ranked what the
 *   ranking of several shows: each setting in a column of its own
 */

/** @param {import("../types.js").RunView} run @param {Shown} shown */
export function resultRow(run, shown) {
  const { result, base, metric, info, ranked } = shown;
  const isBase = base === null;
  const button = (/** @type {string} */ label, /** @type {string} */ text, /** @type {() => void} */ onclick) =>
    h("button.quiet", { type: "button", "aria-label": label, onclick }, text);
  const seeds = acts({
    type: "button", "aria-label": `Repeat ${run.name} with other seeds`,
    onclick: async () => repeat(await get(`/runs/${run.id}`)),
  });
  const name = h("a.name", { href: `/runs/${run.id}`, title: ranked && run.name }, run.name);
  const actions = h(
    "td.row-actions",
    {},
    !run.archived && !run.forked_from && h("button.quiet", seeds, "Seeds"),
    !isBase && button(`Make ${run.name} the baseline`, "Baseline", shown.onBaseline),
    shown.onTakeOut && button(`Take ${run.name} out`, "×", shown.onTakeOut),
  );
  const why = ranked?.caution;
  return h(
    "tr",
    { "data-run": run.id, onpointerenter: ranked?.say, onfocusin: ranked?.say },
    h("td.shrink", {}, shown.swatch),
    h(
      "td.col-name", {}, name, isBase && h("span.tag", {}, "baseline"),
      ranked ? why && h("button.quiet.caution", { type: "button", title: why, "aria-label": `Caution: ${why}` }, "⚠")
        : h("span.dim", {}, ` ${shown.factors}`),
    ),
    !ranked && actions,
    shown.ofState && h("td", {}, runState(run)),
    h("td.num", {}, h("b", {}, f.metric(metric, result?.value))),
    ranked && [ranked.plot, ranked.settings],
    h("td.num", {}, !isBase && besideBaseline(result, base, metric)),
    shown.ofLast && h(
      "td.num", { title: info ? `at step ${f.integer(info.last_step)}` : null }, f.metric(metric, info?.last),
    ),
    h(shown.isBest ? "td.num.is-best" : "td.num", {}, f.metric(metric, shown.best)),
    shown.besides.map(([field, , , unit]) => h(
      "td.num", {}, f.metric(unit, result?.[field]).replace(" tok/s", ""),
      !isBase && notable(result?.[field], base?.[field]),
    )),
    ranked && actions,
  );
}
