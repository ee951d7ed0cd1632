/** Compare runs: differing fields, curves at equal step, tokens or time, deltas to a baseline. */

import { get } from "../api.js";
import { Board } from "../charts/board.js";
import { toolbar, viewFromAddress } from "../charts/toolbar.js";
import { slots, stroke } from "../colour.js";
import { byId, fill, h, mount, s, scrollable, throttled } from "../dom.js";
import * as f from "../format.js";
import { empty, message, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { repeat } from "../seeds.js";
import { runState } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { read, write } from "../urlstate.js";

/**
 * @typedef {import("../types.js").RunDetail} RunDetail
 * @typedef {import("../types.js").ComparisonView} ComparisonView
 * @typedef {import("../types.js").RunResultView} RunResultView
 */

const MOST = 50;
const NOTES = 3;
const GAPS = 6;
const PLUS_MINUS = "± is half of the 95 % interval, from the noise between seeds.";
/** Further columns of the table: [field of a standing, title, explanation, metric that formats it]. */
const BESIDES = /** @type {const} */ ([
  ["tokens_per_s", "tokens/s", "median over the run", "tokens_per_s"],
  ["mfu", "MFU", "median over the run, of the GPUs' dense peak", "mfu"],
  ["step_time_s", "step time", "median over the run", "step_time_s"],
  ["memory_bytes", "memory", "peak memory of one GPU; on a CPU, of the process", "memory/peak_bytes"],
]);

const place = byId("compare");
let ids = (read("runs") ?? "").split(",").filter(Boolean).slice(0, MOST);
let metric = read("metric") ?? "val/loss";
/** @type {Map<string, RunDetail>} */
const runs = new Map();
/** @type {Map<string, number>} */
let given = new Map();
/** @type {string[]} */
let names = [];
let onlyFactors = read("factors") === "1";
/** @type {ComparisonView | null} */
let comparison = null;

const view = viewFromAddress();
const head = h("header.page-head");
const notes = h("div");
const table = h("div.results");
const sets = h("div");
const charts = h("div");
const differences = h("div");
const bar = toolbar(view, (kind) => {
  if (kind === "look") board.redraw();
  else {
    board.reload();
    compare();
  }
}, { superseded: false });
view.old = false;
const board = new Board(charts, [], view, {
  onZoom: (range) => {
    view.range = range;
    bar.show();
    board.reload();
  },
  pins: "compare-pins",
  open: ["train", "val"],
});

/** @param {string} id */
function swatch(id) {
  const { colour, dash } = stroke(given.get(id) ?? 0);
  return s("svg", { class: "swatch", viewBox: "0 0 18 8", width: "18", height: "8", "aria-hidden": "true" }, s("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: colour, "stroke-dasharray": dash === "dash" ? "5 3" : null }));
}

/** @param {string[]} next */
function choose(next) {
  ids = next;
  write({ runs: ids.join(",") });
  load();
}

/**
 * @param {unknown} value
 * @param {unknown} base
 * @param {((v: unknown) => string) | null} format null for the share alone
 */
function delta(value, base, format) {
  const text = f.change(value, base, format);
  return text === null ? null : h("span.delta", {}, text);
}

/**
 * @param {RunResultView | undefined} standing
 * @param {RunResultView | undefined} base
 * @param {(v: unknown) => string} format
 */
function besideBaseline(standing, base, format) {
  if (standing?.incomparable) return h("span.delta.incomparable", {}, standing.incomparable);
  return delta(standing?.value, base?.value, format);
}

const title = h("h1");
const select = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Metric", onchange: () => {
  metric = select.value;
  write({ metric: metric === "val/loss" ? null : metric });
  compare();
} }));
const ref = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "add a run: name or id", "aria-label": "Add a run" }));
const problem = h("span.problem", { role: "alert" });

/** @param {Event} event */
async function add(event) {
  event.preventDefault();
  const wanted = ref.value.trim();
  if (!wanted) return;
  problem.textContent = "";
  try {
    const run = await get(`/runs/${encodeURIComponent(wanted)}`);
    if (ids.includes(run.id)) problem.textContent = `${run.name} is already in the comparison.`;
    else if (ids.length >= MOST) problem.textContent = `At most ${MOST} runs are compared at a time.`;
    else {
      choose([...ids, run.id]);
      if (ref.value.trim() === wanted) ref.value = "";
    }
  } catch (error) {
    problem.textContent = message(error);
  }
}

// Create these elements once, so that typed text and focus survive a redraw.
mount(
  head,
  h("div.crumbs", {}, h("a", { href: "/" }, "Runs"), " / compare"),
  h("div.head-line", {}, title),
  h("div.bar", {}, h("label.field", {}, "by", select), h("form", { onsubmit: add }, ref), problem),
);

function drawHead() {
  title.textContent = `${ids.length} runs compared`;
  fill(select, [...new Set([metric, ...names])].sort().map((name) => h("option", { value: name }, name)));
  select.value = metric;
}

function drawTable() {
  if (!comparison) return;
  const axis = { step: "step", tokens: "tokens", time: "time", flops: "FLOPs" }[view.x];
  const where = comparison.common_x === null ? "not reached by all yet" : view.x === "time" ? f.duration(comparison.common_x) : f.si(comparison.common_x);
  const results = new Map(comparison.results.map((one) => [one.run_id, one]));
  const base = ids[0];
  const format = (/** @type {unknown} */ v) => f.metric(metric, v);
  fill(
    table,
    scrollable(
      h(
        "table",
        { "aria-label": "Results" },
        h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", { scope: "col" }, "run"), h("th", { scope: "col" }, "state"), h("th.num", { scope: "col", title: `where every run has it: ${axis} ${where}` }, `${metric} at ${axis} ${where}`), BESIDES.map(([, name, how]) => h("th.num", { scope: "col", title: how }, name)), h("th", {}, ""))),
        h(
          "tbody",
          {},
          ids.map((id) => {
            const run = runs.get(id);
            if (!run) return null;
            const standing = results.get(id);
            return h(
              "tr",
              { "data-run": id },
              h("td.shrink", {}, /** @type {any} */ (swatch(id))),
              h("td", {}, h("a.name", { href: `/runs/${id}` }, run.name), id === base && h("span.tag", {}, "baseline")),
              h("td", {}, runState(run)),
              h("td.num", {}, h("b", {}, format(standing?.value)), id !== base && besideBaseline(standing, results.get(base), format)),
              BESIDES.map(([field, , , name]) => h("td.num", {}, f.metric(name, standing?.[field]), id !== base && delta(standing?.[field], results.get(base)?.[field], null))),
              h(
                "td",
                {},
                !run.archived && !run.forked_from && h("button.quiet", { type: "button", "aria-label": `Repeat ${run.name} with other seeds`, onclick: () => repeat(run) }, "Seeds"),
                id !== base && h("button.quiet", { type: "button", onclick: () => choose([id, ...ids.filter((one) => one !== id)]) }, "Make baseline"),
                ids.length > 2 && h("button.quiet", { type: "button", "aria-label": `Take ${run.name} out`, onclick: () => choose(ids.filter((one) => one !== id)) }, "×"),
              ),
            );
          }),
        ),
      ),
    ),
  );
  fill(
    notes,
    comparison.notes.slice(0, NOTES).map((note) => h("div.alert", {}, note)),
    comparison.notes.length > NOTES &&
      h("details", {}, h("summary.dim", {}, `${comparison.notes.length - NOTES} more`), comparison.notes.slice(NOTES).map((note) => h("div.alert", {}, note))),
    h("p.note", {}, `Batches: ${comparison.batches_note}.`),
    comparison.means.map((mean) => h("p.note", {}, mean)),
    comparison.gaps.slice(0, GAPS).map((gap) => h("p.verdict.gap", {}, gap.sentence)),
    comparison.gaps.length > GAPS && h("details", {}, h("summary.dim", {}, `${comparison.gaps.length - GAPS} more`), comparison.gaps.slice(GAPS).map((gap) => h("p.note", {}, gap.sentence))),
    comparison.noise !== null && h("p.hint", {}, PLUS_MINUS),
    comparison.noise !== null && h("p.note", {}, `Noise between seeds: ${f.number(comparison.noise)}.`),
  );
  fill(sets, comparison.held_out === "different" && h("div.alert", {}, "Curves under val/ are from different held-out sets and are not comparable."));
}

function drawDifferences() {
  if (!comparison) return;
  const shown = comparison.differences.filter((one) => !onlyFactors || one.factor);
  const box = h("input", { type: "checkbox", checked: onlyFactors, onchange: (/** @type {Event} */ event) => {
    onlyFactors = /** @type {HTMLInputElement} */ (event.target).checked;
    write({ factors: onlyFactors });
    drawDifferences();
  } });
  fill(
    differences,
    h("div.bar", {}, h("label.check", {}, box, "only what may change the outcome"), h("span.dim", {}, `${shown.length} of ${comparison.differences.length} fields`)),
    shown.length === 0
      ? h("p.hint", {}, comparison.differences.length ? "They differ only in names, seeds and what does not change the losses." : "The configs are the same.")
      : scrollable(
          h(
            "table.config",
            { "aria-label": "Config differences" },
            h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "field"), comparison.runs.map((id) => h("th", { scope: "col" }, /** @type {any} */ (swatch(id)), " ", runs.get(id)?.name ?? id)))),
            h("tbody", {}, shown.map((one) => h(one.factor ? "tr.differs" : "tr", {}, h("td.key.shrink", {}, one.path), one.values.map((value) => h("td.value", {}, f.specValue(value, one.path)))))),
          ),
        ),
  );
}

async function compare() {
  const asked = { run: ids, metric, x: view.x };
  try {
    const answer = await get("/compare", asked);
    if (asked.run !== ids || asked.metric !== metric || asked.x !== view.x) return;
    comparison = answer;
    drawTable();
    drawDifferences();
  } catch (error) {
    if (asked.run === ids) showFailure(table, error);
  }
}

async function load() {
  // A late answer to an earlier choice must not replace a later one.
  let mine = ids;
  if (ids.length < 2) {
    fill(place, empty("Nothing to compare", h("p", {}, "Select two runs or more in the ", h("a", { href: "/" }, "runs table"), " and choose Compare.")));
    return;
  }
  if (!place.contains(head)) mount(place, head, notes, table, h("h2", {}, "Curves"), sets, bar.element, charts, h("h2", {}, "Config"), differences);
  drawHead();
  try {
    const found = await Promise.all(ids.map((id) => get(`/runs/${encodeURIComponent(id)}`)));
    const infos = new Map(await Promise.all(found.map(async (run) => /** @type {[string, any[]]} */ ([run.id, await get(`/runs/${run.id}/metrics`)]))));
    if (mine !== ids) return;
    for (const run of found) runs.set(run.id, run);
    ids = [...new Set(found.map((run) => run.id))];
    mine = ids;
    given = slots(ids);
    board.setRuns(ids.map((id) => ({ id, label: runs.get(id)?.name ?? id, stroke: () => stroke(given.get(id) ?? 0), flopsPerToken: runs.get(id)?.flops_per_token ?? null, metrics: (infos.get(id) ?? []).map((info) => info.name) })));
    names = [...new Set([...infos.values()].flat().map((info) => info.name))].sort();
    board.setMetrics(names);
    drawHead();
    await compare();
  } catch (error) {
    if (mine === ids) board.failed(error);
  }
}

installPage();
const again = throttled(compare, 3000);
on("metrics", ({ run_id: id, latest }) => {
  const run = runs.get(id);
  if (!run) return;
  runs.set(id, { ...run, latest: { ...run.latest, ...latest } });
  board.tick();
  again();
});
on("run", (view_) => {
  const run = runs.get(view_.id);
  if (run) runs.set(view_.id, { ...run, ...view_ });
  if (run) again();
});
onCatchUp(() => {
  board.reload();
  again();
});
document.addEventListener("lehr:theme", () => {
  drawTable();
  drawDifferences();
});
load();
