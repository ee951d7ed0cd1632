/** Three runs or more: which is best, the ranking as a plot of dots with their intervals, and what explains it. */

import { get } from "../api.js";
import { labels, linearTicks } from "../charts/axes.js";
import { swatch } from "../charts/drawing.js";
import { scaleOf } from "../colour.js";
import { dataTable, h, s, uncommanded } from "../dom.js";
import { acts } from "../form.js";
import * as f from "../format.js";
import { repeat } from "../run/fork.js";
import { areSeveral, cautionOf, settingsOf } from "./tables.js";
/** @import { ComparisonView } from "../types.js" */

/** On a phone the axis stands beside name and value. */
const [WIDTH, HEIGHT, PAD] = [globalThis.innerWidth <= 640 ? 104 : 160, 27, 14];
/** What is worse than the best by so many times as the median is, is off the scale: it would flatten the others. */
const [FAR, FAR_OF_FEW] = [4, 20];
/** So many numbers are groups of their own, as in groups.py. */
const FEW = 12;
/** Of more runs the matrix has colours without texts. */
const WRITTEN = 4;
/** Of so many their marks stand over the colours. */
const MARKED = 24;
/** A setting that explains less has no column in the ranking, unless it tells runs apart. */
const LEAST = 0.02;
const MISSING = "—";

/** @param {unknown[]} values @returns {number[]} the finite ones */
const finite = (values) => values.flatMap((one) => f.fromWire(one) ?? []).filter(Number.isFinite);
const mean = (/** @type {number[]} */ values) => values.reduce((a, b) => a + b, 0) / values.length;

/**
 * Return the variants, best first: runs that differ only in their seed, with their mean and half of the 95 % interval
 * of its difference from the baseline's. Those without a value that compares with it are not among them.
 *
 * @param {Pick<ComparisonView, "gaps" | "results" | "goal">} comparison
 * @returns {{ids: string[], mean: number, half: number | null}[]}
 */
export function variantsOf({ gaps, results, goal }) {
  if (!gaps.length) return [];
  const base = gaps[0].base_ids;
  const meanOf = (/** @type {string[]} */ ids) =>
    mean(results.filter((one) => ids.includes(one.run_id)).map((one) => f.fromWire(one.value ?? null) ?? NaN));
  const middle = meanOf(base);
  const sign = goal === "maximize" ? -1 : 1;
  // To a baseline that diverged there is no difference.
  const others = gaps.map(({ run_ids: ids, difference, half_width: half = null }) => (
    { ids, mean: Number.isFinite(middle) ? middle + (difference ?? NaN) : meanOf(ids), half }
  ));
  return [{ ids: base, mean: middle, half: null }, ...others].filter((one) => Number.isFinite(one.mean))
    .sort((a, b) => sign * (a.mean - b.mean));
}

/** Say which is best, and by how much. @param {ComparisonView} comparison @param {(id: string) => string} name */
export function sentenceOf(comparison, name) {
  const [best, next, ...rest] = variantsOf(comparison);
  const noise = comparison.noise === null ? "noise unknown"
    : [`noise between seeds ${f.number(comparison.noise, 2)}`, comparison.noise_note].filter(Boolean).join(", ");
  if (!next) return `No two of them have a ${comparison.metric} to compare; ${noise}.`;
  const { runs, differences } = comparison;
  const seedOf = (/** @type {string} */ id) => JSON.stringify(
    differences.filter(({ path }) => f.isSeed(path)).map(({ values }) => values[runs.indexOf(id)]),
  );
  const count = new Set(best.ids.map(seedOf)).size;
  const of = count === 1 ? `${best.ids.length} equal runs` : `${count} seeds`;
  const seeds = best.ids.length > 1 ? ` (mean of ${of})` : "";
  const by = (f.change(next.mean, best.mean, comparison.metric) ?? "").replace(/^[+−±]| \(.*/g, "");
  const others = `${rest.length + 1} ${rest.length ? "others" : "other"}`;
  const left = runs.length - [best, next, ...rest].flatMap(({ ids }) => ids).length;
  return `${name(best.ids[0])}${seeds} is ${comparison.goal ? "best" : "lowest"} by ${by}; ${others}${left ? `, ${left} without a value` : ""}; ${noise}.`;
}

/**
 * Draw that sentence; of two variants, that of the server, but for its command.
 *
 * @param {ComparisonView} comparison
 * @param {(id: string) => string} name
 */
export function verdictOf(comparison, name) {
  const [best] = variantsOf(comparison);
  const onclick = async () => repeat(await get(`/runs/${best.ids[0]}`));
  const measure = h("button", acts({ type: "button", title: comparison.noise_note, onclick }), "Measure with 3 seeds");
  const sentences = areSeveral(comparison)
    ? [sentenceOf(comparison, name)] : comparison.gaps.map(({ sentence }) => uncommanded(sentence));
  return sentences.map(
    (sentence) => h("p.verdict.gap", {}, sentence, " ", best && comparison.noise === null && measure),
  );
}

/** Return the test of what is on the scale of values. @param {number[]} values the best first */
export function onScaleOf(values) {
  const [best = 0, middle = 1] = [values[0], values[values.length >> 1]];
  const far = values.length < 8 ? FAR_OF_FEW : FAR;
  return (/** @type {number} */ v) => best === middle || (v - best) / (middle - best) <= far;
}

/**
 * Draw values as dots over one axis, in a column of a table.
 *
 * @param {ComparisonView} comparison @param {ReturnType<typeof variantsOf>} variants @param {string[]} rows
 */
function plotOf(comparison, variants, rows) {
  const ends = variants.filter((one) => one.ids.some((id) => rows.includes(id)))
    .flatMap(({ mean: middle, half }) => (half === null ? [] : [middle - half, middle + half]));
  const shown = comparison.results.filter((one) => rows.includes(one.run_id));
  const values = finite(shown.map((one) => one.value)).sort((a, b) => a - b);
  if (comparison.goal === "maximize") values.reverse();
  const [best = 0] = values;
  const isNear = onScaleOf(values);
  const near = [...values, ...ends].filter(isNear);
  const [low, high] = near.length > 1 ? [Math.min(...near), Math.max(...near)] : [best - 1, best + 1];
  const x = (/** @type {number} */ v) =>
    Math.round(10 * (PAD + Math.min(1, Math.max(0, (v - low) / (high - low || 1))) * (WIDTH - 2 * PAD))) / 10;
  const ticks = linearTicks(low, high, WIDTH < 160 ? 2 : 3);
  const base = variants.find(({ ids }) => ids.includes(comparison.runs[0]))?.mean;
  const rules = ticks.map((at) => `M${x(at)} 0V${HEIGHT}`).join("");
  const draw = (/** @type {any[]} */ ...parts) =>
    s("svg", { width: WIDTH, height: HEIGHT, "aria-hidden": "true" }, parts);
  const texts = labels(ticks, comparison.metric);
  return {
    head: (/** @type {string} */ hint) => h("th.dots", { key: "plot", scope: "col", title: hint }, draw(ticks.map(
      (at, i) => s("text", { x: x(at), y: 17, "text-anchor": "middle" }, texts[i]),
    )), h("span.unseen", {}, "plot")),
    /** @param {unknown} wire @param {string} colour @param {number | null} half of its bar @param {number} [centre] */
    cell(wire, colour, half, centre) {
      const value = f.fromWire(wire);
      const at = value !== null && Number.isFinite(value) ? value : isNear(high) ? Infinity : -Infinity;
      const [from, to] = [-1, 1].map((side) => x((centre ?? at) + side * (half ?? 0)));
      return h("td.dots", {}, value !== null && draw(
        s("path", { class: "grid", d: rules }),
        base !== undefined && s("path", { class: "base", d: `M${x(base)} 0V${HEIGHT}` }),
        half !== null && s("path", { class: "bar", d: `M${from} 9v9m0-4.5H${to}m0-4.5v9` }),
        // Off the scale: an arrow at its end.
        at < low || at > high
          ? s("text", { x: x(at), y: 18, "text-anchor": "middle", fill: "var(--bad)" }, at < low ? "◀" : "▶")
          : s("circle", { cx: x(at), cy: 13.5, r: 4.5, fill: colour }),
      ));
    },
  };
}

/** Return the props of a cell in the colour of its value. @param {unknown[]} values of a setting, by run */
function tints(values) {
  const known = values.map((one) => (one === MISSING ? null : one));
  const { colour } = scaleOf(known);
  return known.map((one) => (one === null ? {} : { vars: { "--tint": colour(one) } }));
}

/**
 * Return the plot of a ranking, its settings, those first that explain most, and what there is to say of a run.
 *
 * @param {ComparisonView} comparison
 * @param {(id: string) => string} name
 * @param {(id: string) => {colour: string}} strokeOf
 * @param {string[]} rows their runs
 */
export function rankingOf(comparison, name, strokeOf, rows) {
  const { runs, results, gaps } = comparison;
  const variants = variantsOf(comparison);
  const plot = plotOf(comparison, variants, rows);
  const shares = sharesOf(comparison);
  const settings = settingsOf(comparison, [...shares.keys()].filter((path) => (shares.get(path) ?? 0) >= LEAST))
    .sort((a, b) => (shares.get(b.path) ?? -1) - (shares.get(a.path) ?? -1));
  // What is so of most runs would mark none of them; that batches differ, is said above.
  const marked = runs.filter((id) => cautionOf({ ...comparison, results: [] }, id, name));
  return {
    plot,
    settings: settings.map(({ path, short, values }) => {
      const tint = tints(values);
      return { path, short, cell: (/** @type {string} */ id) => h(
        "td.num.tint", { key: path, ...tint[runs.indexOf(id)] }, f.specCell(values[runs.indexOf(id)], path),
      ) };
    }),
    dots(/** @type {string} */ id) {
      const { mean: centre, half = null } = variants.find(({ ids }) => ids.includes(id)) ?? {};
      return plot.cell(results.find((one) => one.run_id === id)?.value, strokeOf(id).colour, half, centre);
    },
    caution: (/** @type {string} */ id) =>
      2 * marked.length <= runs.length && marked.includes(id) && cautionOf(comparison, id, name),
    said(/** @type {string} */ id) {
      const gap = gaps.find((one) => one.run_ids.includes(id))?.sentence ?? "";
      return `${uncommanded(gap)} ${cautionOf(comparison, id, name)}`;
    },
  };
}

/** The share that each factor explains, by path. @param {ComparisonView} comparison */
function sharesOf({ differences, results }) {
  const values = results.map((one) => f.fromWire(one.value ?? null));
  return new Map(differences.map((one) => [one.path, one.factor ? explained(one.values, values) : null]));
}

/**
 * Return the share of the variance of results that lies between the values of a setting, less what as many groups
 * have by chance; null where at most two runs share a value. Of many numbers the four quarters are compared.
 *
 * @param {unknown[]} values of the setting, by run
 * @param {(number | null)[]} results by run
 */
export function explained(values, results) {
  const runs = values.map((value, i) => ({ value, y: results[i] ?? NaN })).filter(({ y }) => Number.isFinite(y));
  const sorted = runs.map(({ value }) => Number(value)).sort((a, b) => a - b);
  const { size } = new Set(sorted);
  const inQuarters = (size > FEW || size === runs.length) && runs.every(({ value }) => typeof value === "number");
  const quarter = (/** @type {unknown} */ value) => Math.floor((4 * sorted.indexOf(Number(value))) / runs.length);
  /** @type {Map<unknown, number[]>} */
  const groups = new Map();
  for (const { value, y } of runs) {
    const key = inQuarters ? quarter(value) : JSON.stringify(value);
    groups.set(key, [...(groups.get(key) ?? []), y]);
  }
  const squares = (/** @type {number[]} */ all) => all.reduce((sum, v) => sum + (v - mean(all)) ** 2, 0);
  const total = squares(runs.map(({ y }) => y)) / (runs.length - 1);
  const within = [...groups.values()].reduce((sum, group) => sum + squares(group), 0) / (runs.length - groups.size);
  return groups.size > 1 && total > 0 && runs.length - groups.size > 1 ? Math.max(0, 1 - within / total) : null;
}

/**
 * Return the table of what differs; of several runs, with what explains most of the results above.
 *
 * @param {ComparisonView} comparison
 * @param {string[]} ids in the order of the ranking
 * @param {ComparisonView["differences"]} shown
 * @param {{strokeOf: (id: string) => import("../colour.js").Stroke, name: (id: string) => string, by: string,
 *   onGroup: (path: string) => void}} options `by`: what the runs are grouped by
 */
export function differencesTable(comparison, ids, shown, { strokeOf, name, by, onGroup }) {
  const columns = ids.map((id) => comparison.runs.indexOf(id));
  const shares = sharesOf(comparison);
  const [ranked, written] = [ids.length > 2, ids.length <= WRITTEN];
  const rows = shown.map((one) => ({ ...one, share: shares.get(one.path) ?? null }));
  if (ranked) rows.sort((a, b) => (b.share ?? -1) - (a.share ?? -1));
  const hint = `Share of the variance of ${comparison.metric} between the values of the setting, less what chance gives. Settings that change together share it.`;
  const isExplained = ranked && rows.some(({ share }) => share !== null);
  const explains = isExplained ? [h("th.num", { scope: "col", title: hint }, "explains")] : [];
  const marks = ids.length > MARKED
    ? [h("th", { key: "all", scope: "colgroup", colspan: ids.length }, "runs in the order above")]
    : ids.map((id) => h(
      "th", { key: id, scope: "col", title: name(id), "aria-label": name(id) },
      swatch(strokeOf(id)), written && [" ", name(id)],
    ));
  const heads = ["field", ...explains, ...marks];
  return dataTable("Config differences", heads, rows.map(({ path, values, factor, share }) => {
    const tint = ranked ? tints(values) : [];
    const props = { type: "button", "aria-pressed": String(by === path), title: `Group the runs by ${path}` };
    const choose = h("button.quiet", props, path);
    return h(
      factor && !ranked ? "tr.differs" : "tr", { key: path, onclick: ranked && (() => onGroup(path)) },
      h("td.key.shrink", {}, ranked ? choose : path), isExplained && h("td.num", {}, f.percent(share)),
      columns.map((column, i) => h("td.value.tint", {
        key: ids[i], title: `${name(ids[i])}: ${f.specValue(values[column], path)}`, ...tint[column],
      }, written && f.specCell(values[column], path))),
    );
  }), { kind: written ? ".config.matrix" : ".config.matrix.dense" });
}
