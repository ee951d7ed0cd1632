/** The page of runs: the rows, newest first and live, and the charts of what they show beside them. */

import { byId, fill, h, mount, scrollable, throttled } from "../dom.js";
import { shortcut } from "../keys.js";
import { showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { Beside, edgeOf, MOST_LINES } from "../runs/beside.js";
import { bestOf, COLUMNS, JUDGED } from "../runs/columns.js";
import {
  columnNamed, columnNames, columnsOf, Configs, judgedBy, labelsOf, LOOKED_AT, varyingPaths,
} from "../runs/configs.js";
import { completions, parseFilter, parts, unknownKey } from "../runs/filter.js";
import { cellOf, grouped, groupRow, Groups, headOf, linesOf, unfolded, withRows } from "../runs/groups.js";
import { fits, pressed, RunList, textOf } from "../runs/list.js";
import { cellMenu, drawOptions, FilterBar, learnProjects, narrowed, noMatch, welcome } from "../runs/options.js";
import { Rows } from "../runs/rows.js";
import { runsKeys, Selection } from "../runs/selection.js";
import { ownKey, SECTION, state } from "../runs/state.js";
import { REFERENCE } from "../run/tags_archive.js";
import { on, onCatchUp } from "../stream.js";
import { memory, read, write } from "../urlstate.js";
/** @import { RunView } from "../types.js" */
/** @import { Item } from "../runs/groups.js" */
/** @import { Column } from "../runs/columns.js" */

/** The most metrics that one request may ask for. */
const MOST_MEANS = 20;
/** From this width on there is room for the rows and charts side by side. */
const WIDE = 1280;
const list = new RunList();
const configs = new Configs();
const input = /** @type {HTMLInputElement} */ (byId("filter"));
const room = byId("runs-table");
const curvesRoom = byId("runs-curves");
const split = byId("runs-split");
const [opened, folded] = ["open", "fold"].map(
  (key) => new Set((read(key) ?? "").split(",").filter(Boolean).map(decodeURIComponent))
);
const groups = new Groups(state.by, () => redraw(true));
const selection = new Selection(byId("selection"), (ids) => {
  for (const id of ids) {
    rows.touch(`run ${id}`);
    const run = list.runs.get(id);
    const group = run && groups.of(run);
    if (group) rows.touch(`group ${group.id}`);
  }
  drawHead();
}, () => load());

/** Select all runs that the filter lets through, also those that are not loaded yet. @param {boolean} yes */
async function chooseAll(yes) {
  if (yes) await list.all();
  redraw();
  selection.select(state.shown, yes);
}

/** @returns {Column[]} */
function columnsNow() {
  const most = state.beside ? edgeOf(split) : Infinity;
  table.classList.toggle("rail", most < Infinity);
  // Names of groups by a key are long, and a list of sweeps shows the best of each.
  const few = SECTION ? 1 : most - Number(groups.byKey);
  const { columns, alike } = columnsOf(state, configs, most < Infinity ? few : most);
  state.alike = alike;
  return columns;
}

/** @param {string} id */
const isOpen = (id) => opened.has(id) || (groups.by === "sweep" && state.usual.has(id) && !folded.has(id));

/** Whether a sort shows a group by the first of its runs: of groups by a key it shows the means. */
const isLed = () => state.orders.length > 0 && !groups.byKey;
const hasReference = () => [...list.runs.values()].some(({ tags }) => tags.includes(REFERENCE));

function arrange() {
  const runs = [...list.runs.values()];
  const { test } = state.filter;
  state.shown = test ? runs.filter((run) => test(run, configs)) : runs;
  // Whose means the rows may show.
  const means = [...COLUMNS, ...state.columns].flatMap(({ metric }) => metric || []);
  groups.ask(state.shown, [...new Set(means)].slice(0, MOST_MEANS));
  state.usual = SECTION ? new Set() : unfolded(state.shown, Boolean(read("filter")));
  const [order] = state.orders;
  state.items = grouped(state.shown, (run) => groups.of(run), isOpen, {
    sorted: Boolean(order), down: order?.down, ranks: groups.ranks(order && columnNamed(order.key, configs), configs),
    first: order || bar.text || groups.by !== SECTION ? [] : groups.launched,
  });
  state.listed = withRows(state.items);
}

/** @param {RunView} run @param {boolean} member */
function runRow(run, member) {
  return h(
    member ? "tr.member" : "tr",
    {
      "data-run": run.id, tabindex: "-1", "aria-selected": String(selection.has(run.id)),
      onpointerenter: () => state.beside?.board.light(run.id), onpointerleave: () => state.beside?.board.light(null),
    },
    h("td.shrink", {}, selection.box(run, () => state.listed), state.beside?.eye(run.id, run.name)),
    state.columns.map(
      (column) => cellOf(column, column.cell(run), column.sort?.(run) === (state.best.get(column.key) ?? NaN))
    ),
  );
}

/** @param {import("../runs/groups.js").Group} group */
const rowOfGroup = (group) => groupRow(group, groups.launches.get(group.id), state.columns, {
  leads: isLed() ? state.orders[0].key : null, best: state.best, known: groups.answered !== "",
  box: selection.boxOf(group.runs, `the runs of ${group.name}`), mark: state.beside?.eye(group.id, group.name),
  onToggle: () => toggle(group.id), onPoint: (run) => state.beside?.board.light(run),
});

/** @param {string} id */
function toggle(id) {
  const open = isOpen(id);
  opened.delete(id);
  folded.delete(id);
  if (open) folded.add(id);
  else opened.add(id);
  const text = (/** @type {Set<string>} */ ids) => [...ids].map(encodeURIComponent).join(",");
  write({ open: text(opened), fold: text(folded) });
  rows.touch(`group ${id}`);
  redraw();
}

const body = h("tbody");
const headRow = h("tr");
const alikeRow = h("tr.alike");
const foot = h("p.runs-foot", { id: "runs-foot" });
const table = h("table.runs", { "aria-label": "Runs" }, h("thead", {}, headRow, alikeRow), body);
const scrolled = scrollable(table);
scrolled.classList.add("runs-room");
/** @type {Rows<Item>} */
const rows = new Rows(
  body,
  {
    key: (item) => (item.kind === "run" ? `run ${item.run.id}` : `group ${item.id}`),
    row: (item) => (item.kind === "run" ? runRow(item.run, item.member) : rowOfGroup(item)),
    same: (a, b) => {
      if (a.kind === "run") return b.kind === "run" && a.run === b.run && a.member === b.member;
      return b.kind === "group" && a.name === b.name && a.open === b.open && a.runs.length === b.runs.length
        && a.runs.every((run, i) => run === b.runs[i]);
    },
  },
  async (drawn, atEnd) => {
    if (withRows(drawn, isLed()).some((run) => configs.lacks(run.id))) fetchConfigs();
    const [runs, sorted] = [[...list.runs.values()], state.orders.length > 0];
    if ((atEnd || drawn.some((one) => groups.lacks(one, runs, sorted))) && (await list.more())) redraw();
  },
);

function drawHead() {
  const box = selection.boxOf(state.shown, "all runs", chooseAll);
  const heads = state.columns.map((column) => headOf(column, state.orders, sortBy));
  fill(headRow, h("th.shrink", { key: "select" }, box), heads);
  const [first] = state.shown;
  const words = first ? state.alike.map(({ title, cell }) => [`${title} `, cell(first)]) : [];
  alikeRow.hidden = !words.length;
  fill(alikeRow, h("td", { colspan: String(state.columns.length + 1) }, h(
    "div", {}, list.complete ? "all: " : "all so far: ", words.map((word, i) => [i > 0 && " · ", word]),
  )));
}

/** @param {string} key @param {boolean} more whether the other columns stay */
async function sortBy(key, more) {
  state.orders = pressed(state.orders, key, more);
  write({ sort: textOf(state.orders) });
  drawHead();
  await load();
}

/** Fetch all runs, and of all that they are filtered, grouped or coloured by. */
async function complete() {
  await list.all();
  await loadConfigs();
  redraw();
}

/** Fetch the configs and metrics that filter, order and columns need: of the rows, or of all that are here. */
async function loadConfigs() {
  const wanted = [
    ...(state.chosen ?? "").split(","), ...state.filter.keys, state.beside ? state.colour.toLowerCase() : "",
    ...judgedBy(state.orders, configs).filter((name) => !JUDGED.includes(name) && hasReference()),
  ].filter((name) => name && name !== "none");
  // A mean of those that are here would be none of the group.
  const wide = wanted.length > 0 || (groups.byKey && state.columns.some(({ key }) => JUDGED.includes(key)));
  const sorted = state.orders.map(({ key }) => key).filter((key) => !COLUMNS.some((column) => column.key === key));
  const drawn = withRows([...rows.drawn.values()].map(({ item }) => item), isLed());
  const ids = wide
    ? [...list.runs.keys()]
    : [...new Set([...withRows(state.items, isLed()).slice(0, LOOKED_AT), ...drawn].map((run) => run.id))];
  const first = await configs.load(ids);
  const metrics = [...wanted, ...sorted].filter(
    (name) => !configs.paths.has(name) && !configs.pathsOf(name).length && name.length > 2 && ![...list.runs.values()]
      .some((run) => name in run.latest) && /^[\w.:/-]+$/.test(name)
  );
  if (metrics.length) await configs.load(ids, metrics);
  if (first || metrics.length) redraw(true);
}

/** @param {boolean} [all] draw every row again: what the cells show has changed besides the runs */
function redraw(all = false) {
  if (!state.loaded) return;
  arrange();
  // Rows by themselves would stand for a moment where their groups will.
  if (groups.waits) return;
  const sign = `${configs.runs.size} ${state.listed.slice(0, LOOKED_AT).map((run) => run.id).join()}`;
  if (all || sign !== state.looked) {
    state.varying = varyingPaths(withRows(state.items, isLed()), configs);
    state.looked = sign;
  }
  state.columns = columnsNow();
  // Of a part of the runs the best is known only where they are sorted. What the server judges comes with the configs.
  const judged = list.complete && state.shown.every(({ id }) => configs.runs.has(id));
  const best = bestOf(state.columns.filter(({ key, goal }) => judged || (!key.includes(":") && (list.complete
    || state.orders.slice(0, 1).some((one) => one.key === key && goal === (one.down ? 1 : -1))))), state.shown);
  const keys = (/** @type {Column[]} */ columns) => columns.map(({ key }) => key).join();
  const after = `${keys(state.columns)}; ${keys(state.alike)} ${[...best]} ${textOf(state.orders)}`;
  state.best = best;
  // Their marks are in the rows.
  const marks = state.beside?.show(
    linesOf(state.items), (runs) => labelsOf(runs, state.varying, configs), state.colour,
    groups.byKey ? groups.by : "", configs, [...state.varying, "val/loss", "train/loss", ...configs.paths],
    list.complete || state.items.length >= MOST_LINES,
  );
  if (all || marks || state.looks !== after) {
    state.looks = after;
    drawHead();
    rows.renew();
    drawOptionsNow();
  }
  showProblem(state.filter.problem ?? (
    state.filter.keys.length ? unknownKey(state.filter, list.runs.values(), configs) : null
  ) ?? groups.problem);
  // Where there is nothing yet, how to begin has the whole width.
  split.classList.toggle("bare", !state.items.length && !bar.text);
  if (!state.items.length) {
    fill(room, bar.text ? noMatch(list, state.filter, () => bar.set([])) : welcome(SECTION));
    return;
  }
  if (!room.contains(table)) {
    drawHead();
    mount(room, scrolled, foot);
  }
  rows.set(state.items);
  const counted = list.count(state.filter.test ? state.shown.length : null);
  foot.textContent = [counted, state.beside?.note].filter(Boolean).join(". ");
}

/** @param {string | null} problem */
function showProblem(problem) {
  const place = byId("filter-problem");
  place.hidden = problem === null;
  if (place.textContent !== (problem ?? "")) place.textContent = problem;
}

async function load() {
  showProblem(state.filter.problem);
  if (state.filter.problem) return;
  try {
    const order = { sort: textOf(state.orders), group: groups.byKey ? null : groups.by || null };
    await Promise.all([list.load({ ...state.filter.query, within: SECTION || null, ...order }), loadSweeps()]);
    for (const run of list.runs.values()) selection.put(run);
    if (!state.loaded) {
      // The columns come with the configs, and would push those beside them away.
      arrange();
      await loadConfigs().catch(() => undefined);
    }
    state.loaded = true;
    redraw();
    // The rows fetch their configs as they are drawn.
    if (state.filter.test || groups.byKey || state.colour) await complete();
  } catch (error) {
    showFailure(room, error);
  }
}

async function loadSweeps() {
  for (const id of await groups.load()) rows.touch(`group ${id}`);
}

function applyFilter() {
  state.filter = parseFilter(bar.text);
  write({ filter: bar.text });
  drawOptionsNow();
  load();
}

/** @param {boolean} yes */
function showCurves(yes) {
  split.classList.toggle("split", yes);
  curvesRoom.hidden = !yes;
  if (yes) {
    state.beside ??= new Beside(curvesRoom, (run) => rows.light(run), (colour) => {
      if (colour !== undefined) {
        state.colour = colour;
        write({ colour });
        if (colour) complete();
      }
      redraw(true);
    });
  } else {
    state.beside?.destroy();
    state.beside = null;
    curvesRoom.replaceChildren();
  }
  redraw(true);
}

function drawOptionsNow() {
  drawOptions(byId("runs-options"), {
    by: groups.by,
    curves: state.beside !== null,
    base: state.base,
    values: columnNames(state.chosen, state.varying),
    varying: state.varying,
    paths: [...configs.paths],
    project: bar.project,
    projects: [...list.runs.values()].map((run) => run.project),
    onProject: (next) => bar.set([...(next ? [`project:${next}`] : []), ...bar.parts], input.value),
    onBy: async (next) => {
      groups.by = next;
      opened.clear();
      folded.clear();
      write({ by: next === (SECTION || "sweep") ? null : next || "none", flat: null, open: null, fold: null });
      drawOptionsNow();
      await load();
      redraw(true);
    },
    onCurves: (yes) => {
      memory.set(ownKey("curves-beside"), yes);
      write({ curves: yes ? "1" : "0" });
      showCurves(yes);
    },
    onColumn: (key, yes) => {
      state.base = COLUMNS.filter((one) => (one.key === key ? yes : state.base.includes(one)));
      const kept = state.base.map((one) => one.key);
      memory.set(ownKey("columns"), kept);
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
}

const update = throttled(async () => {
  redraw();
  if (state.orders.length) reorder();
}, 250);
const refresh = throttled(async () => {
  try {
    await Promise.all([list.refresh(), loadSweeps()]);
    redraw();
    await loadConfigs();
  } catch {
    // The connection mark shows that the server is unavailable; keep the rows.
  }
}, 1500);
/** Ask for the order again, which new values may have changed. */
const reorder = throttled(() => list.refresh().then(() => redraw()).catch(() => undefined), 5000);
const fetchConfigs = throttled(() => loadConfigs().catch(() => undefined), 250);
const refreshSweeps = throttled(() => loadSweeps().then(() => redraw()).catch(() => undefined), 2000);

installPage();
const bar = new FilterBar(input, applyFilter, (text) => completions(text, [...list.runs.values()], configs));
const wanted = read("curves");
showCurves(wanted === null ? memory.get(ownKey("curves-beside"), !SECTION && innerWidth >= WIDE) : wanted === "1");
edgeOf(split, () => redraw(true));
runsKeys(input, rows, selection, () => state.items, toggle);
cellMenu(rows, state, configs, (part) => bar.set(narrowed(bar.whole, part), input.value));
shortcut("a", "select all runs, or none", () => chooseAll(!selection.hasAll(state.shown)));
on("run", (/** @type {RunView} */ run) => {
  selection.put(run);
  if (configs.outdate(list.runs.get(run.id), run)) fetchConfigs();
  const known = list.put(run);
  if (known) update();
  if (known !== fits(run, list.query)) refresh();
  // It has the newest metrics too: the server then sends no event of theirs.
  state.beside?.tick(run.id);
});
on("metrics", ({ run_id: id, latest }) => {
  if (configs.outdate(list.runs.get(id), { latest })) fetchConfigs();
  if (list.metrics(id, latest)) update();
  state.beside?.tick(id);
});
on("sweep", refreshSweeps);
on("rollout", refreshSweeps);
onCatchUp(() => {
  refresh();
  state.beside?.board.reload();
});
bar.set(parts(read("filter") ?? ""));
selection.learn();
learnProjects().then(drawOptionsNow);
