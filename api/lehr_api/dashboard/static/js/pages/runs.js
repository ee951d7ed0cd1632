/** The page of runs: the table, newest first and live, and the curves of what it shows beside it. */

import { get } from "../api.js";
import { byId, fill, h, mount, scrollable, throttled } from "../dom.js";
import { integer } from "../format.js";
import { listFilter } from "../grouplist.js";
import { shortcut } from "../keys.js";
import { empty, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { Beside } from "../runs/beside.js";
import { COLUMNS, withValues } from "../runs/columns.js";
import { columnNames, columnOf, Configs, forLabels, LOOKED_AT, varyingPaths } from "../runs/configs.js";
import { parseFilter, unknownKey } from "../runs/filter.js";
import { grouped as inGroups, sweepRow, unfolded, withCurves, withRows } from "../runs/groups.js";
import { fits, markOf, pressed, RunList, textOf } from "../runs/list.js";
import { drawOptions, welcome } from "../runs/options.js";
import { Rows } from "../runs/rows.js";
import { runsKeys, Selection } from "../runs/selection.js";
import { state } from "../runs/state.js";
import { on, onCatchUp } from "../stream.js";
import { memory, read, write } from "../urlstate.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("../runs/groups.js").Item} Item
 * @typedef {import("../runs/columns.js").Column} Column
 */

/** From this width on there is room for table and curves side by side. */
const WIDE = 1700;
const list = new RunList();
const configs = new Configs();
const input = /** @type {HTMLInputElement} */ (byId("filter"));
const room = byId("runs-table");
const curvesRoom = byId("runs-curves");
/** @type {Map<string, import("../types.js").SweepView>} */
const sweeps = new Map();
const opened = new Set((read("open") ?? "").split(",").filter(Boolean));
const folded = new Set((read("fold") ?? "").split(",").filter(Boolean));
const selection = new Selection(byId("selection"), (ids) => {
  for (const id of ids) {
    rows.touch(`run ${id}`);
    const sweep = list.runs.get(id)?.sweep_id;
    if (sweep) rows.touch(`sweep ${sweep}`);
  }
  drawHead();
}, () => load());

/** Select all runs that the filter lets through, also those that are not loaded yet. @param {boolean} yes */
async function chooseAll(yes) {
  if (yes) await list.all();
  redraw();
  selection.select(state.shown, yes);
}

/** @returns {Column[]} the columns in their order: what differs stands beside the name */
function columnsNow() {
  const names = columnNames(state.chosen, state.varying, state.beside !== null);
  const others = names.map((name) => columnOf(name, names, configs));
  const base = withValues(state.base, state.shown);
  return [...base.slice(0, 2), ...others, ...base.slice(2)];
}
state.columns = columnsNow();

/** @param {string} id */
const isOpen = (id) => opened.has(id) || (state.usual.has(id) && !folded.has(id));

function arrange() {
  const rules = state.orders.flatMap(({ key, down }) => {
    const column = [...state.columns, ...COLUMNS].find((one) => one.key === key) ?? columnOf(key, [key], configs);
    return column.sort ? [{ by: column.sort, down }] : [];
  });
  const runs = rules.length ? list.sorted(rules) : [...list.runs.values()];
  const { test } = state.filter;
  state.shown = test ? runs.filter((run) => test(run, configs)) : runs;
  state.usual = unfolded(state.shown, Boolean(read("filter")));
  state.items = state.grouped && !state.orders.length
    ? inGroups(state.shown, isOpen, (id) => sweeps.get(id)?.best_run_id)
    : state.shown.map((run) => ({ kind: "run", run, member: false }));
  state.listed = withRows(state.items);
}

/** @param {RunView} run @param {boolean} member */
function runRow(run, member) {
  return h(
    member ? "tr.member" : "tr",
    {
      "data-run": run.id, "aria-selected": String(selection.has(run.id)),
      onpointerenter: () => state.beside?.board.light(run.id), onpointerleave: () => state.beside?.board.light(null),
    },
    h("td.shrink", {}, selection.box(run, () => state.listed), state.beside?.eye(run)),
    state.columns.map(
      (column) => h(`td.col-${column.key.replace(/\W/g, "-")}${column.num ? ".num" : ""}`, {}, column.cell(run))
    ),
  );
}

/** @param {string} id @param {RunView[]} runs @param {RunView | null} curve */
const groupRow = (id, runs, curve) =>
  sweepRow(id, runs, sweeps.get(id), {
    open: isOpen(id),
    columns: state.columns.length,
    curve,
    mark: curve && state.beside?.eye(curve),
    isSelected: (run) => selection.has(run.id),
    onSelect: (yes) => selection.select(runs, yes),
    onToggle: () => toggle(id),
  });

/** @param {string} id */
function toggle(id) {
  const open = isOpen(id);
  opened.delete(id);
  folded.delete(id);
  if (open) folded.add(id);
  else opened.add(id);
  write({ open: [...opened].join(","), fold: [...folded].join(",") });
  rows.touch(`sweep ${id}`);
  redraw();
}

const body = h("tbody");
const headRow = h("tr");
const foot = h("p.runs-foot", { id: "runs-foot" });
const table = scrollable(h("table.runs", { "aria-label": "Runs" }, h("thead", {}, headRow), body));
table.classList.add("runs-room");
/** @type {Rows<Item>} */
const rows = new Rows(
  body,
  {
    key: (item) => (item.kind === "run" ? `run ${item.run.id}` : `sweep ${item.id}`),
    row: (item) => (item.kind === "run" ? runRow(item.run, item.member) : groupRow(item.id, item.runs, item.curve)),
    same: (a, b) => {
      if (a.kind === "run") return b.kind === "run" && a.run === b.run && a.member === b.member;
      // Its figures come from the sweep's view; loading it redraws the row.
      return b.kind === "sweep"
        && a.runs.length === b.runs.length
        && sweeps.has(a.id)
        && a.open === b.open
        && a.curve?.id === b.curve?.id;
    },
  },
  async (drawn, atEnd) => {
    if (withRows(drawn).some((run) => !configs.runs.has(run.id))) fetchConfigs();
    if (atEnd && (await list.more())) redraw();
  },
);

function drawHead() {
  const box = selection.boxOfAll(state.shown, chooseAll);
  fill(headRow, h("th.shrink", { key: "select" }, box), state.columns.map(head));
}

/** @param {Column} column */
function head(column) {
  // Assistive technology takes one column as the order: the first.
  const first = state.orders[0]?.key === column.key ? state.orders[0] : null;
  const sortable = column.sort && h("button.sort", {
    type: "button",
    // Or the text between two heads is selected.
    onmousedown: (/** @type {MouseEvent} */ event) => event.shiftKey && event.preventDefault(),
    onclick: (/** @type {MouseEvent} */ event) => sortBy(column.key, event.shiftKey),
  }, column.title + markOf(state.orders, column.key));
  return h(
    `th.col-${column.key.replace(/\W/g, "-")}${column.num ? ".num" : ""}`,
    {
      key: column.key, scope: "col",
      title: [column.hint, column.sort && "Shift and click: sort by it as well"].filter(Boolean).join(". "),
      "aria-sort": first && (first.down ? "descending" : "ascending"),
    },
    sortable ?? column.title,
  );
}

/** @param {string} key @param {boolean} more whether the other columns stay */
async function sortBy(key, more) {
  state.orders = pressed(state.orders, key, more);
  write({ sort: textOf(state.orders) });
  drawHead();
  redraw();
  if (state.orders.length) await complete();
}

/** Fetch all runs, and of all that they are sorted or filtered by. */
async function complete() {
  await list.all();
  await loadConfigs();
  redraw();
}

/**
 * Fetch the configs and metrics that filter, order and columns need: of the rows, or of all runs that are tested or
 * sorted.
 */
async function loadConfigs() {
  const names = [
    ...(state.chosen ?? "").split(","),
    ...state.orders.map(({ key }) => key).filter((key) => !COLUMNS.some((column) => column.key === key)),
    ...state.filter.keys,
  ].filter((name) => name && name !== "none");
  const wide = names.length > 0;
  const drawn = withRows([...rows.drawn.values()].map(({ item }) => item));
  const ids = wide
    ? [...list.runs.keys()]
    : [...new Set([...state.listed.slice(0, LOOKED_AT), ...drawn].map((run) => run.id))];
  const first = await configs.load(ids);
  const metrics = names.filter(
    (name) => !configs.paths.has(name) && !configs.pathsOf(name).length && name.length > 2 && ![...list.runs.values()]
      .some((run) => name in run.latest) && /^[\w./-]+$/.test(name)
  );
  if (metrics.length) await configs.load(ids, metrics);
  if (first || metrics.length) redraw(true);
}

/** @param {boolean} [all] draw every row again: what the cells show has changed besides the runs */
function redraw(all = false) {
  if (!state.loaded) return;
  arrange();
  const before = state.columns.map((column) => column.key).join();
  const sign = `${configs.runs.size} ${state.listed.slice(0, LOOKED_AT).map((run) => run.id).join()}`;
  if (all || sign !== state.looked) {
    state.varying = varyingPaths(state.listed, configs);
    state.looked = sign;
  }
  state.columns = columnsNow();
  if (all || before !== state.columns.map((column) => column.key).join()) {
    drawHead();
    rows.renew();
    drawOptionsNow();
  }
  const paths = forLabels(state.varying);
  const total = list.total ?? list.runs.size;
  state.beside?.show(
    withCurves(state.items),
    { total: state.filter.test ? state.shown.length : total, folded: state.listed.length < state.shown.length },
    (run) => configs.label(run.id, paths) || run.name, state.by,
  );
  showProblem(state.filter.problem ?? (
    state.filter.keys.length ? unknownKey(state.filter, list.runs.values(), configs) : null
  ) ?? state.beside?.problem ?? null);
  if (!state.shown.length) {
    fill(room, nothing());
    return;
  }
  if (!room.contains(table)) {
    drawHead();
    mount(room, table, foot);
  }
  rows.set(state.items);
  const count = (/** @type {number} */ n) => `${integer(n)} ${n === 1 ? "run" : "runs"}`;
  const among = list.complete ? `of ${count(total)}` : `among the newest ${integer(list.runs.size)} of ${count(total)}`;
  foot.textContent = state.filter.test
    ? `${integer(state.shown.length)} ${among}`
    : !list.complete && state.orders.length
    ? among
    : count(total);
}

/** @param {string | null} problem */
function showProblem(problem) {
  const place = byId("filter-problem");
  place.hidden = problem === null;
  if (place.textContent !== (problem ?? "")) place.textContent = problem;
}

function nothing() {
  if (input.value.trim()) {
    const what = list.complete || !state.filter.test
      ? "No run matches this filter"
      : `None of the newest ${integer(list.runs.size)} runs matches this filter`;
    return empty(what, h("p", {}, h("button", { type: "button", onclick: () => setFilter("") }, "Show all runs")));
  }
  return welcome();
}

async function load() {
  showProblem(state.filter.problem);
  if (state.filter.problem) return;
  try {
    await Promise.all([list.load(state.filter.query), loadSweeps()]);
    for (const run of list.runs.values()) selection.put(run);
    state.loaded = true;
    redraw();
    // The rows fetch their configs as they are drawn.
    if (state.orders.length || state.filter.test) await complete();
  } catch (error) {
    showFailure(room, error);
  }
}

async function loadSweeps() {
  const page = await get("/sweeps", { limit: 100 });
  for (const sweep of page.items) {
    sweeps.set(sweep.id, sweep);
    rows.touch(`sweep ${sweep.id}`);
  }
}

/** @param {string} text */
function setFilter(text) {
  input.value = text;
  state.filter = parseFilter(text);
  write({ filter: text.trim() });
  load();
}

/** @param {boolean} yes */
function showCurves(yes) {
  document.getElementById("runs-split")?.classList.toggle("split", yes);
  curvesRoom.hidden = !yes;
  if (yes) {
    state.beside ??= new Beside(curvesRoom, (run) => rows.light(run), () => redraw(true));
  } else {
    state.beside?.destroy();
    state.beside = null;
    curvesRoom.replaceChildren();
  }
  redraw(true);
}

const drawOptionsNow = () =>
  drawOptions(byId("runs-options"), {
    grouped: state.grouped,
    curves: state.beside !== null,
    base: state.base,
    values: columnNames(state.chosen, state.varying, state.beside !== null),
    varying: state.varying,
    by: state.by,
    paths: [...configs.paths],
    onBy: (next) => {
      state.by = next;
      write({ by: state.by });
      drawOptionsNow(); // A later drawing would put this value over what is typed meanwhile.
      redraw();
    },
    onGrouped: (yes) => {
      state.grouped = yes;
      write({ flat: !state.grouped });
      redraw();
    },
    onCurves: (yes) => {
      memory.set("curves-beside", yes);
      write({ curves: yes ? "1" : "0" });
      showCurves(yes);
    },
    onColumn: (key, yes) => {
      state.base = COLUMNS.filter((one) => (one.key === key ? yes : state.base.includes(one)));
      const kept = state.base.map((one) => one.key);
      memory.set("columns", kept);
      write({ cols: kept.join(",") });
      redraw(true);
    },
    onValues: (names) => {
      state.chosen = names === null ? null : names.join(",") || "none";
      write({ values: state.chosen });
      redraw(true);
      loadConfigs().catch(() => undefined);
    },
  });

const update = throttled(async () => redraw(), 250);
const refresh = throttled(async () => {
  try {
    await Promise.all([list.refresh(), loadSweeps()]);
    redraw();
    await loadConfigs();
  } catch {
    // The connection mark shows that the server is unavailable; keep the rows.
  }
}, 1500);
const fetchConfigs = throttled(() => loadConfigs().catch(() => undefined), 250);
const refreshSweeps = throttled(() => loadSweeps().then(() => redraw()).catch(() => undefined), 2000);

installPage();
listFilter(() => setFilter(input.value));
const wanted = read("curves");
showCurves(wanted === null ? memory.get("curves-beside", innerWidth >= WIDE) : wanted === "1");
drawOptionsNow();
runsKeys(input, rows, selection, () => state.items, toggle);
shortcut("a", "select all runs, or none", () => chooseAll(!selection.hasAll(state.shown)));
on("run", (/** @type {RunView} */ run) => {
  selection.put(run);
  const known = list.put(run);
  if (known) update();
  if (known !== fits(run, list.query)) refresh();
  // It has the newest metrics too: the server then sends no event of theirs.
  state.beside?.tick(run.id);
});
on("metrics", ({ run_id: id, latest }) => {
  if (list.metrics(id, latest)) update();
  state.beside?.tick(id);
});
on("sweep", refreshSweeps);
onCatchUp(() => {
  refresh();
  state.beside?.board.reload();
});
load().then(() => selection.learn());
