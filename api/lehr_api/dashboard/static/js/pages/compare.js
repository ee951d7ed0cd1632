/** Compare runs: differing fields, curves at equal step, tokens or time, deltas to a baseline. */

import { ApiError, get } from "../api.js";
import { Board } from "../charts/board.js";
import { swatch as swatchOf } from "../charts/drawing.js";
import { boardRun } from "../charts/lines.js";
import { byNumber } from "../charts/metric_groups.js";
import { CodeDifferences } from "../code.js";
import { slots, stroke } from "../colour.js";
import { Colours } from "../colour_by.js";
import { differencesTable, rankingOf, verdictOf } from "../compare/ranking.js";
import { isRanked, known, ordered } from "../compare/order.js";
import { asked, FIRST, leftOut, MOST, state } from "../compare/state.js";
import { BARS, drawResults } from "../compare/results.js";
import { batchesChip, factorsOf, groupTable, notesOf } from "../compare/tables.js";
import { byId, fill, h, input, mount, throttled } from "../dom.js";
import * as f from "../format.js";
import { empty, message, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { MediaBoard } from "../run/media.js";
import { fetchRuns } from "../runs/list.js";
import { menu, savedViews } from "../runs/saved.js";
import { on, onCatchUp } from "../stream.js";
import { write } from "../urlstate.js";

const place = byId("compare");
/** @type {Map<string, import("../types.js").RunView>} */
const runs = new Map();

const head = h("header.page-head");
const [below, notes, charts, ranking] = ["below", "notes", "charts", "ranking"].map((key) => h("div", { key }));
const differences = h("div.differences");
const curves = h("div.ranked-curves");
const [groups, table] = [h("div.results"), h("div.results", { onpointerleave: () => light(null, true) })];
/** What is not shown of many. */
const foot = h("p.hint");
/** What is said of the row under the pointer, or with the focus. */
const said = h("p.hint.said", { "aria-live": "polite" });
const [code, media] = [new CodeDifferences(), new MediaBoard()];
const colours = new Colours(() => drawLooks());
const board = new Board(charts, [], {
  onLine: (run) => light(run, false), onData: () => compare(), several: true, pins: "compare-pins",
  tools: [colours.place],
});
const { view } = board;

/** The look of a run's line; of a group, that of its mean. @param {string} id */
function strokeOf(id) {
  const of = state.by ? groupName(id) : id;
  return colours.of(runs.get(state.by ? firstOf(of) : id)) ?? stroke(state.slots.get(of) ?? 0);
}
const swatch = (/** @type {string} */ id) => swatchOf(strokeOf(id));

/** @param {string[]} next */
function choose(next) {
  state.ids = next;
  write({ runs: state.ids.join(",") });
  load();
}

/** Mark the row of a run, and its line. @param {string | null} run @param {boolean} line */
function light(run, line) {
  for (const row of table.querySelectorAll("tr")) row.classList.toggle("lit", row.dataset.run === run);
  if (line) board.light(run);
}

const [title, views] = [h("h1"), h("span")];
const batches = h("span.chips");
const select = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Metric", onchange: () => {
  state.chosen = state.metric = select.value;
  write({ metric: state.metric });
  compare();
} }));
const ref = input({ type: "search", placeholder: "add a run: name or id", "aria-label": "Add a run" });
const problem = h("span.problem", { role: "alert" });

/** @param {Event} event */
async function add(event) {
  event.preventDefault();
  const wanted = ref.value.trim();
  if (!wanted) return;
  problem.textContent = "";
  try {
    const run = await get(`/runs/${encodeURIComponent(wanted)}`);
    if (state.ids.includes(run.id)) problem.textContent = `${run.name} is already in the comparison.`;
    else if (state.ids.length >= MOST) problem.textContent = `At most ${MOST} runs are compared at a time.`;
    else {
      choose([...state.ids, run.id]);
      if (ref.value.trim() === wanted) ref.value = "";
    }
  } catch (error) {
    problem.textContent = message(error);
  }
}

// Create these elements once, so that typed text and focus survive a redraw.
mount(
  head,
  h(
    "div.head-line", {}, h("span.crumbs", {}, h("a", { href: "/" }, "Runs"), " /"), title, code.chip, batches,
    h("label.field", {}, "by", select), h("form", { onsubmit: add }, ref), views, problem,
  ),
);
const drawViews = () => fill(views, menu("views", "View", savedViews(drawViews)));
drawViews();

function drawHead() {
  const without = leftOut > 0 ? `; ${leftOut} of ${asked.length} are left out: at most ${MOST} at a time` : "";
  title.textContent = `${state.ids.length} ${state.ids.length === 1 ? "run" : "runs"} compared${without}`;
  const names = [...new Set([state.metric, ...state.names])].sort(byNumber);
  fill(select, names.map((name) => h("option", { value: name }, name)));
  select.value = state.metric;
}

/** The name of a run's group. @param {string} id */
const groupName = (id) => state.comparison?.groups.find((one) => one.run_ids.includes(id))?.name ?? id;
const firstOf = (/** @type {string} */ group) => state.ids.find((id) => groupName(id) === group) ?? "";

const xText = (/** @type {number} */ x) => (view.x === "time" ? f.duration(x) : f.si(x));

/** Group the runs by a field in which they differ, or not. @param {string} by */
function groupBy(by) {
  state.by = state.by === by ? "" : by;
  write({ by: state.by });
  compare();
}

/** @param {ReturnType<typeof rankingOf> | null} ranked @param {string} where */
function drawGroups(ranked, where) {
  const { comparison, metric } = state;
  const end = h("button.quiet", { type: "button", onclick: () => groupBy(state.by) }, "each run ×");
  fill(groups, comparison && state.by && [h("div.bar", {}, `by ${state.by}`, end), groupTable(
    comparison.groups, metric, where || `no common ${view.x}`, (name) => strokeOf(firstOf(name)), nameOf, ranked?.plot,
  )]);
}

/** The runs with a row and a curve, in their order: of many the first, and the baseline. */
function rows() {
  const all = ordered().filter((id) => runs.has(id));
  const first = all.slice(0, FIRST);
  return state.isAll || all.length <= FIRST ? all : [...new Set([...first, state.ids[0]])];
}

function drawTable() {
  const { comparison } = state;
  if (!comparison) return;
  const ids = rows();
  const ranked = isRanked() ? rankingOf(comparison, nameOf, strokeOf, state.by ? state.ids : ids) : null;
  const axis = { step: "step", tokens: "tokens", time: "time", flops: "FLOPs" }[view.x];
  const where = comparison.common_x === null ? "" : `${axis} ${xText(comparison.common_x)}`;
  drawGroups(ranked, where);
  const onRow = (/** @type {string} */ id) => {
    said.textContent = ranked?.said(id) ?? "";
    light(id, true);
  };
  drawResults(table, { comparison, runs, ids, ranked, where, swatch, choose, redraw: drawLooks, onRow });
  const left = state.ids.length - ids.length;
  fill(foot, left > 0 && h("button", { type: "button", onclick: () => {
    state.isAll = true;
    drawLooks();
  } }, `Show all ${state.ids.length}`), left > 0 && ` ${ids.length} have rows and curves: the first in this order.`);
  said.textContent ||= `${comparison.noise === null ? "" : BARS}Point at a run to see its curve and how it compares.`;
  fill(batches, ranked && batchesChip(comparison));
  fill(notes, verdictOf(comparison, nameOf), notesOf(comparison, nameOf));
}

/** Draw all that has colours. */
function drawLooks() {
  drawCurves();
  drawTable();
  drawDifferences();
}

const OUT = "and settings that do not change the losses";
const nameOf = (/** @type {string} */ id) => runs.get(id)?.name ?? id;

function drawDifferences() {
  const { comparison } = state;
  if (!comparison) return;
  // A ranking is explained by what may change it.
  const shown = comparison.differences.filter((one) => !isRanked() || one.factor);
  const left = comparison.differences.length - shown.length;
  fill(
    differences,
    shown.length > 0
      && differencesTable(comparison, ordered(), shown, { strokeOf, name: nameOf, by: state.by, onGroup: groupBy }),
    left > 0 && h(
      "p.hint", {},
      `${left} ${shown.length ? "other " : ""}${left === 1 ? "field differs" : "fields differ"}: names, seeds ${OUT}.`,
    ),
    comparison.differences.length === 0 && h("p.hint", {}, "The configs are the same."),
  );
}

function drawCurves() {
  state.slots = state.by ? slots([], state.ids.map(groupName)) : slots(state.ids);
  board.means = state.by === "" ? null : "runs";
  board.bar.offer(state.ids.flatMap((id) => runs.get(id) ?? []));
  board.setRuns((state.by ? state.ids : rows()).flatMap((id) => runs.get(id) ?? []).map((run) => boardRun(run, {
    label: factorsOf(state.comparison, run.id) || run.name,
    group: state.by ? groupName(run.id) : null,
    stroke: strokeOf(run.id),
    metrics: [...(known.get(run.id)?.keys() ?? [])],
  })));
}

async function compare() {
  const request = { run: state.ids, metric: state.chosen, x: view.x, by: state.by || null };
  try {
    const answer = await get("/compare", request);
    const isOld = request.run !== state.ids || request.metric !== state.chosen;
    if (isOld || request.x !== view.x || request.by !== (state.by || null)) return;
    state.comparison = answer;
    if (state.metric !== answer.metric) {
      state.metric = answer.metric;
      drawHead();
    }
    await colours.show([...runs.values()], state.by ? "by group" : "by run", state.by);
    drawLooks();
    code.draw(answer, state.ids[0], nameOf);
    below.style.visibility = "";
  } catch (error) {
    if (request.run !== state.ids) return;
    if (!request.by || !(error instanceof ApiError) || error.status !== 404) {
      showFailure(table, error);
      return;
    }
    // The address names what no run has: compare without groups.
    problem.textContent = message(error);
    state.by = "";
    write({ by: state.by });
    await compare();
  }
}

const nothing = () => empty("Nothing to compare", h(
  "p", {}, "Select two runs or more in the ", h("a", { href: "/" }, "runs table"), " and choose Compare.",
));

/** Draw what the runs have logged beside numbers; those that have nothing are left out. */
async function drawMedia() {
  const mine = state.ids;
  // Lehr's own trainer logs none, and the FLOPs of its models are known.
  const programs = mine.filter((id) => runs.get(id)?.flops_per_token === null);
  const columns = await Promise.all(programs.map(async (id) => ({
    id, head: [swatch(id), " ", nameOf(id)], items: await get(`/runs/${id}/media`).catch(() => []),
  })));
  if (mine === state.ids) media.draw(columns.filter(({ items }) => items.length));
}

async function load() {
  // A late answer to an earlier choice must not replace a later one.
  let mine = state.ids;
  if (state.ids.length < 2) {
    fill(place, nothing());
    return;
  }
  if (!place.contains(head)) {
    // What is found stands above the curves, and would push them away.
    below.style.visibility = "hidden";
    mount(place, head, below);
  }
  // Before the curves, which take their width from their place.
  below.classList.toggle("ranked", isRanked());
  mount(ranking, groups, table, foot, isRanked() && said);
  mount(curves, h(isRanked() ? "h2.unseen" : "h2", {}, "Curves"), board.bar.element, charts);
  mount(
    below, notes, ranking, curves, media.element, h("h2", {}, isRanked() ? "What differs" : "Config"), differences,
    h("h2", {}, "Code"), code.element,
  );
  drawHead();
  // Asked together with the runs; again below if one of them is gone.
  const early = get("/metrics", { run: state.ids }).catch(() => null);
  try {
    const { found, missing } = await fetchRuns(state.ids);
    if (missing && mine === state.ids) problem.textContent = message(missing);
    if (mine === state.ids && new Set(found.map((run) => run.id)).size < 2) {
      fill(
        place,
        h("div.failure", { role: "alert" }, h(
          "p", {}, missing ? message(missing) : `${found[0].name} alone: a comparison needs two different runs.`,
        )),
        nothing(),
      );
      return;
    }
    const all = await early ?? await get("/metrics", { run: found.map((run) => run.id) });
    if (mine !== state.ids) return;
    for (const run of found) runs.set(run.id, run);
    state.ids = [...new Set(found.map((run) => run.id))];
    mine = state.ids;
    for (const { run_id: id, metrics } of all) {
      known.set(id, new Map(metrics.map((/** @type {any} */ info) => [info.name, info])));
    }
    // Which are shown of many, is known once they are ranked.
    if (state.ids.length <= FIRST) drawCurves();
    state.names = [...new Set(found.flatMap(({ id }) => [...(known.get(id)?.keys() ?? [])]))].sort(byNumber);
    board.setMetrics(state.names);
    drawHead();
    await compare();
    await drawMedia();
  } catch (error) {
    if (mine === state.ids) board.failed(error);
  } finally {
    below.style.visibility = "";
  }
}

installPage();
const again = throttled(compare, 3000);
on("metrics", ({ run_id: id, latest }) => {
  const run = runs.get(id);
  if (!run) return;
  runs.set(id, { ...run, latest: { ...run.latest, ...latest } });
  board.announce(id);
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
addEventListener("resize", throttled(drawTable, 300));
load();
