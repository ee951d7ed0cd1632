/** The table of the results: of several runs a ranking, with as many columns as there is room for. */

import { get } from "../api.js";
import { dataTable, fill, h } from "../dom.js";
import { acts } from "../form.js";
import * as f from "../format.js";
import { repeat } from "../run/fork.js";
import { runState } from "../status.js";
import { bestOfAll, known, ofRun, sortHead } from "./order.js";
import { state } from "./state.js";
import { factorsOf } from "./tables.js";
/** @import { RunView } from "../types.js" */

/** @typedef {[head: string | HTMLElement, cell: (id: string) => HTMLElement]} Column */
/**
 * @typedef {{comparison: import("../types.js").ComparisonView, runs: Map<string, RunView>, ids: string[],
 *   where: string, ranked: ReturnType<typeof import("./ranking.js").rankingOf> | null, swatch: (id: string) => any,
 *   choose: (ids: string[]) => void, redraw: () => void, onRow: (id: string) => void}} Shown `ids`: rows in order;
 *   `where` values are compared; `choose`: compare these; `onRow`: a row has the pointer, or the focus
 */

export const BARS = "Bars: the 95 % interval of a difference from the baseline, from the noise between seeds. ";
/** The width of the count of columns that have no room, in pixels. */
const OPENER = 44;

/** Further columns of the table: [field of a standing, title, explanation, metric that formats it]. */
const BESIDES = /** @type {const} */ ([
  ["tokens_per_s", "median tok/s", "over the run", "tokens_per_s"],
  ["mfu", "MFU", "median over the run, of the GPUs' dense peak", "mfu"],
  ["step_time_s", "median step", "time of a step over the run", "step_time_s"],
  ["memory_bytes", "memory", "highest of one GPU; on a CPU, of the process", "memory/peak_bytes"],
]);

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
function notable(value, base) {
  const [one, other] = [value, base].map((v) => (typeof v === "number" ? v : NaN));
  return Math.abs(one / other - 1) >= NOTABLE ? delta(f.change(value, base, null)) : null;
}

/**
 * @param {import("../types.js").RunResultView | undefined} standing
 * @param {import("../types.js").RunResultView | undefined} base
 * @param {string} metric
 */
function besideBaseline(standing, base, metric) {
  if (standing?.incomparable) return h("span.delta.incomparable", {}, standing.incomparable);
  return delta(f.change(standing?.value, base?.value, metric));
}

/** How many characters of the end of a name stay where its middle is left out: runs differ there. */
const END = 8;

/**
 * The name of a run.
 *
 * @param {import("../types.js").RunView} run
 * @param {...import("../dom.js").Child} marks what stands after it
 */
const nameOf = (run, ...marks) => h("div.run-name", {}, h(
  "a.name", { href: `/runs/${run.id}`, title: `${run.name}, ${run.state}` },
  h("span", {}, run.name.slice(0, -END)), h("span", {}, run.name.slice(-END)),
), marks);

/**
 * What can be done with a run.
 *
 * @param {import("../types.js").RunView} run
 * @param {(() => void) | null} onBaseline null for the baseline itself
 * @param {(() => void) | null} onTakeOut null where too few would be left
 */
function actionsOf(run, onBaseline, onTakeOut) {
  const button = (/** @type {string} */ label, /** @type {string} */ text, /** @type {() => void} */ onclick) =>
    h("button.quiet", { type: "button", "aria-label": label, onclick }, text);
  const seeds = acts({
    type: "button", "aria-label": `Repeat ${run.name} with other seeds`,
    onclick: async () => repeat(await get(`/runs/${run.id}`)),
  });
  return h(
    "span", {}, !run.archived && !run.forked_from && h("button.quiet", seeds, "Seeds"),
    onBaseline && button(`Make ${run.name} the baseline`, "Baseline", onBaseline),
    onTakeOut && button(`Take ${run.name} out`, "×", onTakeOut),
  );
}

/** Return the columns that are always there, and those for which there may be no room. @param {Shown} shown */
function columnsOf({ comparison, runs, ranked, where, swatch, choose, redraw }) {
  const { metric, ids, ids: [baseline] } = state;
  const results = new Map(comparison.results.map((one) => [one.run_id, one]));
  const base = results.get(baseline);
  const runOf = (/** @type {string} */ id) => /** @type {RunView} */ (runs.get(id));
  const best = bestOfAll();
  const ofLast = !ranked || ids.some((id) => known.get(id)?.get(metric)?.last !== results.get(id)?.value);
  const hint = where ? `where every run with a value has it: ${where}` : "no value to compare";
  /** @type {(head: string | HTMLElement, ...cell: [kind: string, of: (id: string) => any]) => Column} */
  const column = (head, kind, of) => [head, (id) => h(kind, {}, of(id))];
  const sorted = (/** @type {string} */ key, /** @type {string} */ text, /** @type {string} */ how, under = "") =>
    sortHead(key, text, how, redraw, under);
  const why = (/** @type {string} */ id) => ranked?.caution(id);
  const actions = column(".row-actions", "td.row-actions", (id) => actionsOf(
    runOf(id), id === baseline ? null : () => choose([id, ...ids.filter((one) => one !== id)]),
    ranked ? () => choose(ids.filter((one) => one !== id)) : null,
  ));
  const first = [
    column("", "td.shrink", swatch),
    column(".col-name run", "td.col-name", (id) => nameOf(
      runOf(id), id === baseline && h("span.tag", {}, "baseline"),
      ranked && runOf(id).state !== "completed" && runState(runOf(id)),
      ranked ? why(id) && h("button.quiet.caution", { type: "button", "aria-label": `Caution: ${why(id)}` }, "⚠")
        : h("span.dim", {}, factorsOf(comparison, id)),
    )),
    !ranked && actions,
    !ranked && column("state", "td", (id) => runState(runOf(id))),
    column(
      sorted("value", !ranked && where ? `${metric} at ${where}` : metric, hint, ranked && ofLast ? where : ""),
      "td.num", (id) => h("b", {}, f.metric(metric, results.get(id)?.value)),
    ),
    ranked && /** @type {Column} */ ([ranked.plot.head(BARS), ranked.dots]),
  ];
  const more = [
    ...(ranked?.settings ?? []).map(
      ({ path, short, cell }) => /** @type {Column} */ ([sorted(path, short, path), cell]),
    ),
    column(sorted("best", "best", "the best value of each run"), "td.num", (id) => h(
      best !== null && f.fromWire(ofRun(id, "best")) === best ? "span.is-best" : "span", {},
      f.metric(metric, ofRun(id, "best")),
    )),
    comparison.results.some(({ delta: by, incomparable }) => typeof by === "number" || incomparable) && column(
      ".num to the baseline", "td.num", (id) => id !== baseline && besideBaseline(results.get(id), base, metric),
    ),
    ofLast && column(
      sorted("last", "last", "the newest value of each run, at its own step"), "td.num",
      (id) => f.metric(metric, ofRun(id, "last")),
    ),
    // A figure that no run has, such as the MFU on a CPU, has no column.
    ...BESIDES.map(([key, name, how, unit]) => comparison.results.some((one) => one[key] !== null)
      && column(sorted(key, name, how), "td.num", (id) => [
        f.metric(unit, results.get(id)?.[key]).replace(" tok/s", ""),
        id !== baseline && notable(results.get(id)?.[key], base?.[key]),
      ])),
  ];
  return { first: first.filter((one) => !!one), more: more.filter((one) => !!one), last: ranked ? [actions] : [] };
}

/** How many columns have room, and in which table. */
const fit = { count: Infinity, of: "" };

/**
 * Draw the table: the columns for which there is no room stand behind a count.
 *
 * @param {HTMLElement} place
 * @param {Shown} shown
 */
export function drawResults(place, shown) {
  const { ids, ranked, onRow } = shown;
  const { first, more, last } = columnsOf(shown);
  const of = [place.clientWidth, ids, more.length, state.isWide].join();
  const isKnown = of === fit.of || !ranked || state.isWide;
  if (of !== fit.of) Object.assign(fit, { of, count: Infinity });
  const left = Math.max(0, more.length - fit.count);
  const onclick = () => {
    state.isWide = !state.isWide;
    drawResults(place, shown);
  };
  const opener = h("th.row-actions", { key: "more" }, (left > 0 || state.isWide) && h(
    "button.quiet", { type: "button", "aria-label": state.isWide ? "Fewer columns" : `${left} more columns`, onclick },
    state.isWide ? "less" : `+${left}`,
  ));
  const columns = [...first, ...more.slice(0, fit.count), ...last];
  const heads = columns.map(([head]) => head);
  const rows = ids.map((id) => h("tr", {
    "data-run": id, onpointerenter: ranked && (() => onRow(id)), onfocusin: ranked && (() => onRow(id)),
  }, columns.map(([, cell]) => cell(id))));
  if (ranked) heads[heads.length - 1] = opener;
  fill(place, dataTable("Results", heads, rows, { kind: ranked ? ".ranking" : "" }));
  const ends = [...place.querySelectorAll("th")].map((one) => one.offsetLeft + one.offsetWidth);
  if (isKnown || Math.max(...ends) <= place.clientWidth) return;
  fit.count = ends.slice(first.length, -1).filter((end) => end <= place.clientWidth - OPENER).length;
  drawResults(place, shown);
}
