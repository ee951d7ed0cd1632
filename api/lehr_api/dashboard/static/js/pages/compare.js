/** Compare runs: differing fields, curves at equal step, tokens or time, deltas to a baseline. */

import { ApiError, get } from "../api.js";
import { Board, SEVERAL_MS } from "../charts/board.js";
import { swatch as swatchOf } from "../charts/drawing.js";
import { ask } from "../charts/feed.js";
import { byNumber } from "../charts/metric_groups.js";
import { CodeDifferences } from "../code.js";
import { slots, stroke } from "../colour.js";
import { asked, leftOut, MOST, state } from "../compare/state.js";
import { BESIDES, differencesTable, FACTORS, factorsOf, groupTable, notesOf, resultRow } from "../compare/tables.js";
import { byId, checkbox, dataTable, fill, h, input, mount, throttled } from "../dom.js";
import * as f from "../format.js";
import { empty, message, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { MediaBoard } from "../run/media.js";
import { fetchRuns } from "../runs/list.js";
import { on, onCatchUp } from "../stream.js";
import { write } from "../urlstate.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("../types.js").ComparisonView} ComparisonView
 * @typedef {import("../types.js").RunResultView} RunResultView
 */

const place = byId("compare");
const runs = /** @type {Map<string, RunView>} */ (new Map());

const head = h("header.page-head");
const below = h("div");
const notes = h("div");
const groups = h("div.results");
const table = h("div.results");
const sets = h("div");
const charts = h("div");
const differences = h("div");
const code = new CodeDifferences();
const media = new MediaBoard();
const board = new Board(charts, [], {
  onData: () => compare(), superseded: false, pins: "compare-pins", open: ["train", "val"], pauseMs: SEVERAL_MS,
});
const { view } = board;

/** The look of a run's line; of a group, that of its mean. @param {string} id */
const strokeOf = (id) => stroke(state.slots.get(state.by ? firstOf(groupName(id)) : id) ?? 0);
const swatch = (/** @type {string} */ id) => swatchOf(strokeOf(id));

/** @param {string[]} next */
function choose(next) {
  state.ids = next;
  write({ runs: state.ids.join(",") });
  load();
}

/** @type {Map<string, Map<string, import("../types.js").MetricInfo>>} by run, its metrics */
const known = new Map();

/**
 * The value of the compared metric: of last steps, or the best of all.
 *
 * @param {string} id
 * @param {"last" | "best"} which
 */
function ofRun(id, which) {
  const info = known.get(id)?.get(state.metric);
  if (!info) return null;
  if (which === "last") return info.last;
  return state.comparison?.goal ? { minimize: info.minimum, maximize: info.maximum }[state.comparison.goal] : null;
}

const factors = (/** @type {string} */ id) => factorsOf(state.comparison, id);

/** @param {string} id @param {string} key */
function sortValue(id, key) {
  const standing = state.comparison?.results.find((one) => one.run_id === id);
  const value = key === "value"
    ? standing?.value
    : key === "last" || key === "best"
    ? ofRun(id, key)
    : standing?.[/** @type {"mfu"} */ (key)];
  return f.fromWire(value ?? null);
}

/** @returns {string[]} the runs in the order of the table: the baseline first, unless it is sorted */
function ordered() {
  const key = state.order?.replace("-", "");
  if (!key) return state.ids;
  const sign = state.order?.startsWith("-") ? -1 : 1;
  const rank = (/** @type {string} */ id) => {
    const value = sortValue(id, key);
    return value === null || Number.isNaN(value) ? Infinity : sign * value;
  };
  return [...state.ids].sort((a, b) => rank(a) - rank(b) || 0);
}

/** @param {string} key @param {string} text @param {string} hint */
function sortHead(key, text, hint) {
  const mark = state.order === key ? " ↑" : state.order === `-${key}` ? " ↓" : "";
  const onclick = () => {
    state.order = state.order === key ? `-${key}` : state.order === `-${key}` ? null : key;
    write({ order: state.order });
    drawTable();
  };
  const sorted = mark ? (mark === " ↑" ? "ascending" : "descending") : null;
  const button = h("button.sort", { type: "button", onclick }, text + mark);
  return h("th.num", { key, scope: "col", title: hint, "aria-sort": sorted }, button);
}

const title = h("h1");
const select = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Metric", onchange: () => {
  state.chosen = state.metric = select.value;
  write({ metric: state.metric });
  compare();
} }));
const bySelect = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Mean by", onchange: () => {
  state.by = bySelect.value;
  write({ by: state.by });
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
  h("div.crumbs", {}, h("a", { href: "/" }, "Runs"), " / compare"),
  h("div.head-line", {}, title),
  h(
    "div.bar", {}, h("label.field", {}, "by", select), h("label.field", {}, "mean by", bySelect),
    h("form", { onsubmit: add }, ref), problem,
  ),
);

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

function drawGroups() {
  const { comparison, metric } = state;
  if (!comparison) return;
  const paths = comparison.differences.map((one) => one.path);
  // All factors together as well: what is left are the seeds.
  const all = comparison.differences.filter((one) => one.factor).slice(0, FACTORS).map((one) => one.path).join(", ");
  const option = (/** @type {string} */ path) => h("option", { key: path, value: path }, path || "each run");
  const own = ["", ...new Set([...paths, ...(all.includes(",") ? [all] : []), "tag", "project"])];
  fill(
    bySelect, own.map(option),
    state.by && !own.includes(state.by) && !state.names.includes(state.by) && option(state.by),
    h("optgroup", { key: "metrics", label: "metrics, in equal parts" }, state.names.map(option)),
  );
  bySelect.value = state.by;
  if (!state.by) fill(groups);
  if (!state.by) return;
  const where = comparison.common_x === null ? `no common ${view.x}` : `${view.x} ${xText(comparison.common_x)}`;
  fill(groups, groupTable(comparison.groups, metric, where, (group) => swatch(firstOf(group))));
}

function drawTable() {
  const { comparison, metric } = state;
  if (!comparison) return;
  drawGroups();
  const axis = { step: "step", tokens: "tokens", time: "time", flops: "FLOPs" }[view.x];
  const where = comparison.common_x === null ? "" : xText(comparison.common_x);
  const results = new Map(comparison.results.map((one) => [one.run_id, one]));
  // A figure that no run has, such as the MFU on a CPU, has no column.
  const besides = BESIDES.filter(([field]) => comparison?.results.some((one) => one[field] !== null));
  const base = state.ids[0];
  const heads = [
    "", "run", ".row-actions", "state",
    sortHead(
      "value", where ? `${metric} at ${axis} ${where}` : metric,
      where ? `where every run with a value has it: ${axis} ${where}` : "no value to compare",
    ),
    ".num to the baseline",
    sortHead("last", "last", "the newest value of each run, at its own step"),
    sortHead("best", "best", "the best value of each run"),
    ...besides.map(([key, name, how]) => sortHead(key, name, how)),
  ];
  fill(table, dataTable("Results", heads, ordered().map((id) => {
    const run = runs.get(id);
    return run && resultRow(run, {
      result: results.get(id),
      base: id === base ? null : results.get(base),
      metric, besides, swatch: swatch(id), factors: factors(id), info: known.get(id)?.get(metric),
      best: ofRun(id, "best"),
      onBaseline: () => choose([id, ...state.ids.filter((one) => one !== id)]),
      onTakeOut: state.ids.length > 2 ? () => choose(state.ids.filter((one) => one !== id)) : null,
    });
  })));
  fill(notes, notesOf(comparison));
  fill(sets, comparison.held_out === "different" && h(
    "div.alert", {}, "Curves under val/ are from different held-out sets and are not comparable.",
  ));
}

const ONLY_NAMES = "They differ only in names, seeds and settings that do not change the losses.";
const nameOf = (/** @type {string} */ id) => runs.get(id)?.name ?? id;

function drawDifferences() {
  const { comparison } = state;
  if (!comparison) return;
  const shown = comparison.differences.filter((one) => !state.onlyFactors || one.factor);
  const box = checkbox(state.onlyFactors, (yes) => {
    state.onlyFactors = yes;
    write({ factors: yes });
    drawDifferences();
  });
  fill(
    differences,
    h("div.bar", {}, h("label.check", {}, box, "only what may change the outcome"), h(
      "span.dim", {}, `${shown.length} of ${comparison.differences.length} fields`,
    )),
    shown.length
      ? differencesTable(comparison.runs, shown, (id) => [/** @type {any} */ (swatch(id)), " ", nameOf(id)])
      : h("p.hint", {}, comparison.differences.length ? ONLY_NAMES : "The configs are the same."),
  );
}

function drawCurves() {
  state.slots = slots(state.by ? state.ids.map((id) => firstOf(groupName(id))) : state.ids);
  board.meanOfGroups = state.by !== "";
  board.bar.offer(state.ids.flatMap((id) => runs.get(id) ?? []));
  board.setRuns(state.ids.filter((id) => runs.has(id)).map((id) => ({
    id,
    label: factors(id) || runs.get(id)?.name || id,
    group: state.by ? groupName(id) : null,
    stroke: () => strokeOf(id),
    parent: runs.get(id)?.forked_from,
    flopsPerToken: runs.get(id)?.flops_per_token ?? null,
    metrics: [...(known.get(id)?.keys() ?? [])],
    attempt: runs.get(id)?.attempt,
    ended: (runs.get(id)?.ended_at ?? null) !== null,
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
    drawCurves();
    drawTable();
    drawDifferences();
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
  const columns = await Promise.all(mine.map(async (id) => ({
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
    mount(
      below, notes, groups, table, h("h2", {}, "Curves"), sets, board.bar.element, charts, media.element,
      h("h2", {}, "Config"), differences, h("h2", {}, "Code"), code.element,
    );
  }
  drawHead();
  // Asked together with the runs; again below for those that the address names otherwise than by their ids.
  const early = new Map(state.ids.map((id) => [id, ask("/metrics", id, {}).catch(() => null)]));
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
    const infos = new Map(await Promise.all(found.map(
      async (run) =>
        /** @type {[string, any[]]} */ ([run.id, (await early.get(run.id)) ?? (await ask("/metrics", run.id, {}))])
    )));
    if (mine !== state.ids) return;
    for (const run of found) runs.set(run.id, run);
    state.ids = [...new Set(found.map((run) => run.id))];
    mine = state.ids;
    for (const [id, all] of infos) known.set(id, new Map(all.map((info) => [info.name, info])));
    drawCurves();
    state.names = [...new Set([...infos.values()].flat().map((info) => info.name))].sort(byNumber);
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
document.addEventListener("lehr:theme", () => {
  drawTable();
  drawDifferences();
});
load();
