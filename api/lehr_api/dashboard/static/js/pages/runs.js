/** The table of runs, newest first, updated live. */

import { get, post } from "../api.js";
import { byId, fill, h, mount, scrollable, throttled } from "../dom.js";
import { integer, metric, NONE, specValue } from "../format.js";
import { rowKeys, shortcut } from "../keys.js";
import { confirmed, empty, message, showFailure, toast } from "../notices.js";
import { installPage } from "../page.js";
import { addTags, archive } from "../run/tags_archive.js";
import { COLUMNS } from "../runs/columns.js";
import { parseFilter } from "../runs/filter.js";
import { RunList } from "../runs/list.js";
import { Rows } from "../runs/rows.js";
import { ENDED, stateMark } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { memory, read, write } from "../urlstate.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {{kind: "run", run: RunView, member: boolean} | {kind: "sweep", id: string, runs: RunView[], open: boolean}} Item
 */

const SMALL_SWEEP = 16;
const list = new RunList();
const input = /** @type {HTMLInputElement} */ (byId("filter"));
const room = byId("runs-table");
/** @type {Map<string, import("../types.js").SweepView>} */
const sweeps = new Map();
const selected = new Set();
const opened = new Set((read("open") ?? "").split(",").filter(Boolean));
const folded = new Set((read("fold") ?? "").split(",").filter(Boolean));
/** The newest sweep if it is small: it is expanded, because most users look for it. */
let newest = "";
let filter = parseFilter(read("filter") ?? "");
let sort = read("sort"); // "loss" or "-loss"; null: newest first
let grouped = read("flat") !== "1";

/** @returns {string[]} */
function shownKeys() {
  const address = read("cols");
  if (address) return address.split(",");
  return memory.get("columns", COLUMNS.filter((column) => !column.off).map((column) => column.key));
}

let columns = COLUMNS.filter((column) => shownKeys().includes(column.key) || column.key === "name");

/** @returns {Item[]} */
function items() {
  const column = sort ? COLUMNS.find((one) => one.key === sort?.replace("-", "")) : null;
  const runs = column?.sort ? list.sorted(column.sort, sort?.startsWith("-") ?? false) : [...list.runs.values()];
  const shown = filter.test ? runs.filter(filter.test) : runs;
  if (!grouped || column) return shown.map((run) => ({ kind: "run", run, member: false }));
  /** @type {Item[]} */
  const result = [];
  /** @type {Map<string, RunView[]>} */
  const members = new Map();
  for (const run of shown) {
    if (run.sweep_id) members.set(run.sweep_id, [...(members.get(run.sweep_id) ?? []), run]);
  }
  for (const run of shown) {
    if (!run.sweep_id) {
      result.push({ kind: "run", run, member: false });
      continue;
    }
    const group = members.get(run.sweep_id);
    if (!group) continue;
    members.delete(run.sweep_id);
    if (!result.some((item) => item.kind === "sweep")) newest = group.length <= SMALL_SWEEP ? run.sweep_id : "";
    result.push({ kind: "sweep", id: run.sweep_id, runs: group, open: isOpen(run.sweep_id) });
    if (!isOpen(run.sweep_id)) continue;
    // Show trials in the order of the grid, not newest first.
    for (const member of [...group].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }))) {
      result.push({ kind: "run", run: member, member: true });
    }
  }
  return result;
}

/** @param {RunView} run @param {boolean} member */
function runRow(run, member) {
  const box = h("input", {
    type: "checkbox",
    "aria-label": `Select ${run.name}`,
    checked: selected.has(run.id),
    onchange: (/** @type {Event} */ event) => select(run.id, /** @type {HTMLInputElement} */ (event.target).checked),
  });
  return h(
    member ? "tr.member" : "tr",
    { "data-run": run.id, "aria-selected": String(selected.has(run.id)) },
    h("td.shrink", {}, box),
    columns.map((column) => h(`td.col-${column.key}${column.num ? ".num" : ""}`, {}, column.cell(run))),
  );
}

/** @param {Record<string, number>} counts */
function countsLine(counts) {
  const shown = Object.entries(counts).filter(([, n]) => n > 0);
  return h("span.counts", {}, shown.map(([state, n]) => stateMark(state, `${n} ${state === "queued" ? "wait" : state}`)));
}

/** @param {string} id @param {RunView[]} runs */
function sweepRow(id, runs) {
  const sweep = sweeps.get(id);
  /** @type {Record<string, number>} */
  const counts = sweep?.counts ?? {};
  if (!sweep) for (const run of runs) counts[run.state] = (counts[run.state] ?? 0) + 1;
  const size = Object.values(counts).reduce((a, b) => a + b, 0);
  const open = isOpen(id);
  const name = sweep?.name ?? runs[0].name.replace(/-\d+$/, "");
  const best = sweep?.best_parameters
    ? Object.entries(sweep.best_parameters).map(([path, value]) => `${path.split(".").at(-1)} ${specValue(value, path)}`).join(", ")
    : null;
  const all = runs.every((run) => selected.has(run.id));
  return h(
    "tr.group",
    { "data-sweep": id },
    h("td.shrink", {}, h("input", {
      type: "checkbox",
      "aria-label": `Select the runs of ${name}`,
      checked: all,
      indeterminate: !all && runs.some((run) => selected.has(run.id)),
      onchange: (/** @type {Event} */ event) => {
        for (const run of runs) select(run.id, /** @type {HTMLInputElement} */ (event.target).checked);
      },
    })),
    h(
      "td.col-name",
      {},
      h("button.twist", { type: "button", "aria-expanded": String(open), "aria-label": `${open ? "Fold" : "Unfold"} ${name}`, onclick: () => toggle(id) }, open ? "▾" : "▸"),
      h("a.name", { href: `/sweeps/${id}` }, name),
      h("span.dim", {}, ` (${size})`),
    ),
    h(
      "td",
      { colspan: String(columns.length - 1) },
      countsLine(counts),
      sweep?.held_out === "different" && h("span.reason", { title: sweep.held_out_note }, "no best: different held-out sets"),
      best && h("span.reason", {}, "best ", h("b", {}, metric(sweep?.metric ?? "", sweep?.best_value)), ` at ${best}`),
    ),
  );
}

/** @param {string} id */
const isOpen = (id) => opened.has(id) || (id === newest && !folded.has(id));

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

/** @param {string} id @param {boolean} yes */
function select(id, yes) {
  if (yes) selected.add(id);
  else selected.delete(id);
  const run = list.runs.get(id);
  rows.touch(`run ${id}`);
  if (run?.sweep_id) rows.touch(`sweep ${run.sweep_id}`);
  drawSelection();
}

function drawSelection() {
  const bar = byId("selection");
  bar.hidden = selected.size === 0;
  const chosen = /** @type {RunView[]} */ ([...selected].map((id) => list.runs.get(id)).filter(Boolean));
  const live = chosen.filter((run) => !ENDED.has(run.state)).map((run) => run.id);
  fill(
    bar,
    h("b", {}, `${selected.size} selected`),
    selected.size > 1 && h("a.button", { href: `/compare?runs=${[...selected].join(",")}` }, "Compare"),
    h("button", { type: "button", onclick: () => addTags(chosen) }, "Tag"),
    live.length === 0 && h("button", { type: "button", onclick: async () => {
      if (!(await archive(chosen))) return;
      for (const id of selected) list.runs.delete(id);
      selected.clear();
      drawSelection();
      load();
    } }, "Archive"),
    live.length > 0 && h("button.danger", { type: "button", onclick: () => cancel(live) }, `Cancel ${live.length} ${live.length === 1 ? "run" : "runs"}`),
    h("button.quiet", { type: "button", onclick: () => {
      selected.clear();
      drawSelection();
      rows.renew();
    } }, "Clear"),
  );
}

/** @param {string[]} ids */
async function cancel(ids) {
  const names = ids.map((id) => list.runs.get(id)?.name).join(", ");
  const yes = await confirmed({
    title: `Cancel ${ids.length === 1 ? "this run" : `${ids.length} runs`}?`,
    body: h("p", {}, `${names}. Cancelling does not save a checkpoint; existing checkpoints stay.`),
    yes: "Cancel them",
    danger: true,
  });
  if (!yes) return;
  const results = await Promise.allSettled(ids.map((id) => post(`/runs/${id}/cancel`)));
  for (const result of results) if (result.status === "rejected") toast(message(result.reason), { bad: true });
}

const body = h("tbody");
const headRow = h("tr");
const foot = h("p.runs-foot", { id: "runs-foot" });
const table = scrollable(h("table.runs", { "aria-label": "Runs" }, h("thead", {}, headRow), body));
/** @type {Rows<Item>} */
const rows = new Rows(
  body,
  {
    key: (item) => (item.kind === "run" ? `run ${item.run.id}` : `sweep ${item.id}`),
    row: (item) => (item.kind === "run" ? runRow(item.run, item.member) : sweepRow(item.id, item.runs)),
    same: (a, b) => {
      if (a.kind === "run") return b.kind === "run" && a.run === b.run && a.member === b.member;
      // Its figures come from the sweep's view; loading it redraws the row.
      return b.kind === "sweep" && a.runs.length === b.runs.length && sweeps.has(a.id) && a.open === b.open;
    },
  },
  async () => {
    if (await list.more()) redraw();
  },
);

function drawHead() {
  fill(headRow, h("th.shrink", {}, h("span.unseen", {}, "select")), columns.map(head));
}

/** @param {import("../runs/columns.js").Column} column */
function head(column) {
  const key = sort?.replace("-", "");
  const down = sort?.startsWith("-");
  const sorted = key === column.key ? (down ? "descending" : "ascending") : null;
  const mark = sorted ? (down ? " ↓" : " ↑") : "";
  return h(
    `th.col-${column.key}${column.num ? ".num" : ""}`,
    { key: column.key, scope: "col", title: column.hint, "aria-sort": sorted },
    column.sort ? h("button.sort", { type: "button", onclick: () => sortBy(column.key) }, column.title + mark) : column.title,
  );
}

/** @param {string} key */
async function sortBy(key) {
  // Ascending, descending, then newest first again.
  sort = sort === key ? `-${key}` : sort === `-${key}` ? null : key;
  write({ sort });
  drawHead();
  redraw();
  if (sort) {
    await list.all();
    redraw();
  }
}

function redraw() {
  const shown = items();
  if (!shown.length) {
    fill(room, nothing());
    return;
  }
  if (!room.contains(table)) {
    drawHead();
    mount(room, table, foot);
  }
  rows.set(shown);
  const total = list.total ?? list.runs.size;
  const partial = !list.complete && (sort || filter.test);
  foot.textContent = partial
    ? `among the newest ${integer(list.runs.size)} of ${integer(total)} runs`
    : `${integer(total)} ${total === 1 ? "run" : "runs"}`;
}

function nothing() {
  if (input.value.trim()) {
    return empty("No run matches this filter", h("p", {}, h("button", { type: "button", onclick: () => setFilter("") }, "Show all runs")));
  }
  return empty(
    "No runs yet",
    h("p", {}, "Submit one, or a sweep of several:"),
    h("pre", {}, "lehr submit run.yaml\nlehr sweep sweeps/lr_grid.yaml"),
    h("p", {}, "They appear here at once."),
  );
}

async function load() {
  const problem = byId("filter-problem");
  problem.hidden = filter.problem === null;
  problem.textContent = filter.problem ?? "";
  if (filter.problem) return;
  try {
    await Promise.all([list.load(filter.query), loadSweeps()]);
    redraw();
    if (sort || filter.test) {
      await list.all();
      redraw();
    }
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
  filter = parseFilter(text);
  write({ filter: text.trim() });
  load();
}

function options() {
  const choose = (/** @type {string} */ key, /** @type {boolean} */ yes) => {
    const chosen = COLUMNS.filter((one) => (one.key === key ? yes : columns.includes(one))).map((one) => one.key);
    columns = COLUMNS.filter((one) => chosen.includes(one.key));
    memory.set("columns", chosen);
    write({ cols: chosen.join(",") });
    drawHead();
    rows.renew();
  };
  fill(
    byId("runs-options"),
    h("label.check", {}, h("input", { type: "checkbox", checked: grouped, onchange: (/** @type {Event} */ event) => {
      grouped = /** @type {HTMLInputElement} */ (event.target).checked;
      write({ flat: !grouped });
      redraw();
    } }), "group sweeps"),
    h(
      "details.menu",
      {},
      h("summary", {}, "Columns"),
      h("div.menu-list", {}, COLUMNS.filter((column) => column.key !== "name").map((column) =>
        h("label.check", {}, h("input", { type: "checkbox", checked: columns.includes(column), onchange: (/** @type {Event} */ event) => choose(column.key, /** @type {HTMLInputElement} */ (event.target).checked) }), column.title),
      )),
    ),
  );
}

function keys() {
  shortcut("/", "filter", () => {
    input.focus();
    input.select();
  });
  const mark = (/** @type {number} */ index) => {
    rows.mark(index);
    rows.scrollTo(index);
  };
  const item = (/** @type {number} */ index) => items()[index];
  const open = (/** @type {number} */ index) => {
    const one = item(index);
    if (one) location.assign(one.kind === "run" ? `/runs/${one.run.id}` : `/sweeps/${one.id}`);
  };
  rowKeys({ count: () => items().length, show: mark, open, select: (index) => {
    const one = item(index);
    if (one?.kind === "run") select(one.run.id, !selected.has(one.run.id));
    else if (one) toggle(one.id);
  } });
  shortcut("c", "compare the selected runs", () => {
    if (selected.size > 1) location.assign(`/compare?runs=${[...selected].join(",")}`);
    else toast(`Select two runs or more to compare them (${selected.size || NONE} selected).`);
  });
}

const update = throttled(async () => redraw(), 250);
const refresh = throttled(async () => {
  try {
    await Promise.all([list.refresh(), loadSweeps()]);
    redraw();
  } catch {
    // The connection mark shows that the server is unavailable; keep the rows.
  }
}, 1500);
const refreshSweeps = throttled(() => loadSweeps().catch(() => undefined), 2000);

installPage();
input.value = read("filter") ?? "";
byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
let typing = 0;
input.addEventListener("input", () => {
  clearTimeout(typing);
  typing = window.setTimeout(() => setFilter(input.value), 200);
});
options();
keys();
on("run", (/** @type {RunView} */ run) => {
  if (list.put(run)) update();
  else refresh();
});
on("metrics", ({ run_id: id, latest }) => {
  if (list.metrics(id, latest)) update();
});
on("sweep", refreshSweeps);
onCatchUp(refresh);
load();
