/** The page of the cluster: what each GPU did and will do, why others are idle, and the queue. */

import { get, put } from "../api.js";
import { ABOUT, alike, expectation, memoryUsed, temperature } from "../cluster.js";
import { byId, dataTable, fill, h, input, throttled } from "../dom.js";
import { acts, field, openForm, order } from "../form.js";
import * as f from "../format.js";
import { empty, showFailure, toast, tryTo } from "../notices.js";
import { installPage } from "../page.js";
import { keep } from "../patch.js";
import { on, onCatchUp } from "../stream.js";
import { axis, percentOf, queueOf, strip } from "../strips.js";
/** @import { ClusterHistory, ClusterView, NodeHistory, NodeView, QueueEntry } from "../types.js" */

/** @param {NodeView} node @param {string} verb @param {object} body @param {string} done what to say then */
async function change(node, verb, body, done) {
  await order(`/cluster/nodes/${encodeURIComponent(node.name)}/${verb}`, `${node.name} ${done}.`, body);
  reload();
}

/** @param {NodeView} node */
function drain(node) {
  const reason = input({ maxlength: 500, required: true, autocomplete: "off" });
  openForm({
    title: `Drain ${node.name}?`,
    about: "No new runs are placed on it. Its running runs continue until they end.",
    fields: [field("reason", reason, "shown beside the node")],
    yes: "Drain the node",
    act: () => change(node, "exclude", { reason: reason.value }, "gets no new runs"),
  });
}

/** @param {string} word @param {NodeView} node @param {() => void} onclick */
const nodeButton = (word, { name }, onclick) =>
  h("button", acts({ type: "button", onclick }, "admin"), `${word} ${name}`);

/** @param {NodeView} node */
const drainButton = (node) => (node.excluded === null
  ? nodeButton("Drain", node, () => drain(node))
  : nodeButton("Readmit", node, () => tryTo(() => change(node, "readmit", {}, "can get new runs"))));

/** @param {NodeView} node */
function setUntil(node) {
  const end = input({ type: "datetime-local" });
  openForm({
    title: `Until when is ${node.name} available?`,
    about: "Five minutes before, its trainings save, are queued again, and resume on other nodes. No run starts on it that would lose work.",
    fields: [field("until", end, "in the time zone of this browser; empty: it has no end")],
    yes: "Set",
    act: () => change(
      node, "until", { until: end.value ? new Date(end.value).getTime() / 1000 : null },
      end.value ? "is available until then" : "has no end",
    ),
  });
}

/** @param {QueueEntry[]} entries those of one row */
function setPriority(entries) {
  const names = entries.length > 1
    ? `${entries.length} runs, ${entries[0].name} to ${entries[entries.length - 1].name}`
    : entries[0].name;
  const value = String(entries[0].priority);
  const number = input({ type: "number", min: "-100", max: "100", step: "1", required: true, value });
  openForm({
    title: `Priority of ${names}`,
    about: "A higher priority starts first. Runs that hold GPUs keep them.",
    fields: [field("priority", number, "from -100 to 100")],
    yes: "Change",
    act: async () => {
      for (const { run_id: id } of entries) await put(`/runs/${id}/priority`, { priority: Number(number.value) });
      toast(`The priority is ${number.value}.`);
    },
  });
}

/** Return the priority of a row of the queue, as the button that changes it. @param {QueueEntry[]} entries */
export const priorityButton = (entries) => h(
  "button.quiet",
  acts({
    type: "button", "aria-label": `Change the priority of ${entries[0].name}`, title: "Change the priority",
    onclick: () => setPriority(entries),
  }),
  String(entries[0].priority),
);

const place = byId("cluster");
const [LOOK_MS, HISTORY_MS] = [5000, 60_000];
/** @type {import("../strips.js").Past | null} */
let past = null;
const said = keep(h("p.strip-read", { role: "status" }, "Point at a strip, or move along it by the arrow keys."));
/**
 * @typedef {object} Row a node of the page: its parts are drawn one by one, and keep focus and scroll positions
 * @property {HTMLElement} section
 * @property {HTMLElement[]} parts the head, the box of the strip, that of the curves, and the table
 * @property {import("../strips.js").Past | null} past of which the strip is
 * @property {boolean} open
 * @property {import("../node_curves.js").NodeCurves} [curves]
 */

/** @type {Map<string, Row>} by name */
const nodeRows = new Map();

/** Show what was at a time, by one cursor in all strips and curves. @param {string} text @param {number} at */
function say(text, at) {
  fill(said, text);
  if (past) place.style.setProperty("--at", String(percentOf(past, at) / 100));
  for (const { open, curves } of nodeRows.values()) if (open) curves?.move(at);
}

/** @param {NodeView} node @param {Row} row */
async function toggle(node, row) {
  row.open = !row.open;
  drawNode(node);
  if (!row.open) return;
  // Most visits need no chart.
  const { NodeCurves } = await import("../node_curves.js");
  const curves = row.curves ??= new NodeCurves(row.parts[2], node.name, say);
  await tryTo(() => curves.load(past));
}

/** @param {NodeView} node */
function gpuTable(node) {
  const unheld = node.no_runs === null ? "free" : node.alive ? "not given out" : node.left ? "has left" : "no answer";
  // Figures of a node that does not respond are old.
  const figure = (/** @type {string} */ text) => h("td.num", {}, node.alive && text);
  const rows = node.gpus.map((gpu) => h(
    "tr", { title: ABOUT }, h("td", {}, gpu.index),
    h("td", {}, gpu.run_id === null ? gpu.run_name ?? unheld : h("a", { href: `/runs/${gpu.run_id}` }, gpu.run_name)),
    figure(f.percent(gpu.utilization)), figure(memoryUsed(gpu)), figure(temperature(gpu)),
    h("td", {}, gpu.since !== null && f.time(gpu.since)),
  ));
  const heads = ["GPU", "run", ".num used", ".num memory", ".num temperature", "since"];
  return dataTable(`GPUs of ${node.name}`, heads, rows);
}

/** Put a strip into a box that scrolls with all others. @param {any} child @param {string} [name] */
const room = (child, name) => h("div.strip-room", {
  tabindex: name && "0", role: name && "group", "aria-label": name,
  onscroll: (/** @type {any} */ { currentTarget: box }) => {
    for (const other of document.querySelectorAll(".strip-room")) other.scrollLeft = box.scrollLeft;
  },
}, child);

/** @param {NodeView} node */
function drawNode(node) {
  if (!nodeRows.has(node.name)) {
    const parts = [h("div.node-head"), room(null), room(null), h("div")];
    const section = keep(h("section.node", { "aria-label": `Node ${node.name}` }, parts));
    nodeRows.set(node.name, { section, parts, past: null, open: false });
  }
  const row = /** @type {Row} */ (nodeRows.get(node.name));
  const { section, open, parts: [head, track, curves, table] } = row;
  const kinds = [...new Set(node.gpus.map((gpu) => gpu.name))].join(", ");
  const memory = node.gpus[0]?.memory_bytes;
  const own = past?.history.nodes.find(({ name }) => name === node.name);
  fill(
    head,
    h("h2", {}, h(
      "button.quiet", {
        type: "button", "aria-expanded": String(open), title: "Its curves and GPUs", onclick: () => toggle(node, row),
      }, open ? "▾ " : "▸ ", node.name,
    )),
    node.no_runs && h(node.left ? "span.dim" : "span.bad", {}, `✕ ${node.no_runs}`),
    node.until !== null && !node.left && !node.ending && h("span.dim", {}, "available until ", f.time(node.until)),
    h(
      "span.dim", {}, `${node.gpus.length} × ${kinds}`,
      node.logical ? ": training runs on the CPU" : memory && `, ${f.bytes(memory)} each`,
      node.cpus !== null && `; ${f.integer(node.cpus)} CPUs`,
      node.alive && node.cpu_utilization !== null && `, ${f.percent(node.cpu_utilization)} in use`,
      node.alive && node.ram_bytes && `; ${f.bytes(node.ram_used_bytes)} of ${f.bytes(node.ram_bytes)} memory in use`,
    ),
    h("details.menu", {}, h("summary", { "aria-label": `More of ${node.name}` }, "⋯"), h(
      "div.menu-list", {}, h("span.mono.dim", {}, node.address),
      h("span.dim", {}, "last seen ", f.time(node.last_seen_at, { seconds: true })),
      !node.left && [drainButton(node), nodeButton("Set the end of", node, () => setUntil(node))],
    )),
  );
  if (past && past !== row.past) {
    fill(track, strip(past, own ?? { name: node.name, gpus: node.gpus.length, spans: [], runs: [], unused: [] }, say));
    if (open) row.curves?.load(past).catch(() => {});
  }
  row.past = past;
  curves.hidden = !open;
  fill(table, open && gpuTable(node));
  return section;
}

/** The most reasons in a row. */
const REASONS = 4;

/** Return name, GPU-hours and why, by name. @param {ClusterHistory} history @param {string} by */
function idleBy(history, by) {
  const sums = history.idle.filter((one) => one.by === by && one.kind !== "down" && one.gpu_hours >= 0.05);
  return [...new Set(sums.map(({ name }) => name))].map((name) => {
    const own = sums.filter((one) => one.name === name);
    const why = own.slice(0, REASONS)
      .map(({ kind, gpu_hours: hours }) => (own.length > 1 ? `${hours.toFixed(1)} ${kind}` : kind));
    const more = own.length > REASONS ? [`${own.length - REASONS} more reasons`] : [];
    return { by, name, hours: own.reduce((all, one) => all + one.gpu_hours, 0), why: [...why, ...more].join(" · ") };
  });
}

/** @param {number} count @param {string} word */
const counted = (count, word) => `${f.integer(count)} ${word}${count === 1 ? "" : "s"}`;

/** @param {ClusterView} cluster @param {QueueEntry[]} queue */
function figuresOf(cluster, queue) {
  const waiting = queue.reduce((sum, { gpus }) => sum + gpus, 0);
  const { history } = past ?? {};
  const [idle] = history ? idleBy(history, "all") : [];
  const figure = (/** @type {string} */ name, /** @type {any} */ value, /** @type {any} */ more) =>
    h("div", {}, h("dt", {}, name), h("dd.v", {}, value, " ", h("small", {}, more)));
  return h(
    "dl.figures", {},
    figure("busy GPUs", cluster.gpus_busy, `of ${cluster.gpus_total}`),
    figure("queue", queue.length, `${queue.length === 1 ? "run" : "runs"}, ${counted(waiting, "GPU")}`),
    history && (history.gpu_hours < 0.05
      ? figure("idle GPU-hours", f.NONE, "nothing is recorded yet")
      : figure("idle GPU-hours", (idle?.hours ?? 0).toFixed(1), [
        `of ${history.gpu_hours.toFixed(1)} in 24 h`, idle && h("span.why", {}, idle.why),
      ])),
  );
}

/** @param {ClusterHistory} history */
const idleTable = (history) => h(
  "details", {}, h("summary", {}, "Idle GPU-hours by project, person, node and week"),
  dataTable(
    "Idle GPU-hours", ["by", "name", ".num GPU-hours", "why"],
    ["project", "person", "node", "week"].flatMap((by) => idleBy(history, by)).map(({ by, name, hours, why }) => h(
      "tr", {}, h("td", {}, by), h("td", {}, name), h("td.num", {}, hours.toFixed(1)), h("td.wrap.why", {}, why),
    )),
  ),
  h(
    "p.hint", {}, "Free and starting GPUs: as the server saw them every 30 s. Held, under 5 % used: by the mean of each "
    + "minute of what the node's agent read by NVML; not of logical GPUs, nor where it read nothing. "
    + "Projects and people are those of the run that a reason names.",
  ),
);

/** @param {QueueEntry} entry */
function expected(entry) {
  const found = expectation(entry, Date.now() / 1000);
  return found && [found.text, " ", h("span.dim", {}, found.basis)];
}

/** @param {QueueEntry[]} queue */
function queueTable(queue) {
  if (!queue.length) return h("p.hint", {}, "Nothing waits.");
  const rows = alike(queue).map(([entry, ...more]) => {
    const last = more.at(-1);
    return h(
      "tr",
      { "data-run": entry.run_id },
      h("td.num", {}, last ? `${entry.position}–${last.position}` : entry.position),
      h("td", {}, h("a.name", { href: `/runs/${entry.run_id}` }, entry.name), last && h(
        "span.dim", { title: more.map((one) => one.name).join(", ") }, ` to ${last.name}: ${more.length + 1} runs`,
      )),
      h("td", {}, `${entry.gpus} × ${entry.gpu_type ?? "GPU"}${entry.nodes > 1 ? ` on ${entry.nodes} nodes` : ""}`),
      h("td.num", {}, priorityButton([entry, ...more])),
      h("td.wrap", {}, entry.reason),
      h("td.wrap", {}, expected(entry)),
      h("td", {}, f.time(entry.queued_at)),
    );
  });
  return dataTable(
    "Queue", [".num.shrink", "run", "needs", ".num priority", "why it waits", "expected start", "waits since"], rows,
  );
}

/** @param {ClusterView} cluster @param {QueueEntry[]} queue */
function draw(cluster, queue) {
  if (past) {
    const now = past.history.ended;
    const times = [...past.ends.values(), ...queue.map((entry) => entry.expected_start ?? 0)];
    const until = Math.min(now + 12 * 3600, Math.max(now + 3600, ...times.map((at) => at + 1800)));
    // By half hours: another axis is another drawing of all strips.
    const last = Math.ceil(until / 1800) * 1800;
    if (last !== past.last) past = { ...past, last };
  }
  fill(
    place,
    cluster.state !== "up" && h(cluster.state === "down" ? "div.failure" : "div.alert", {}, cluster.message ?? (
      cluster.state === "starting" ? "The cluster is starting; this takes about ten seconds." : "The cluster is down."
    )),
    figuresOf(cluster, queue),
    said,
    past && room(axis(past), "Hours"),
    cluster.nodes.length
      ? cluster.nodes.map(drawNode)
      : cluster.state === "up" && empty("No nodes", h("p", {}, "The cluster has no nodes yet.")),
    h("h2", {}, `Queue${queue.length ? ` (${queue.length})` : ""}`),
    past && room(strip(past, queueOf(queue, past.last), say)),
    queueTable(queue),
    past && idleTable(past.history),
  );
}

let [drawn, looked] = ["", -Infinity];
async function load() {
  try {
    const old = performance.now() - looked > HISTORY_MS;
    const [cluster, queue] = await Promise.all([get("/cluster"), get("/queue"), old && loadHistory()]);
    const state = JSON.stringify([cluster, queue, past?.history.ended]);
    if (state === drawn) return;
    drawn = state;
    draw(cluster, queue);
  } catch (error) {
    if (!drawn) showFailure(place, error);
  }
}

async function loadHistory() {
  const asked = [get("/cluster/history"), get("/runs", { state: ["running"], limit: 1000 })];
  const [history, { items }] = await Promise.all(asked);
  // Of a new server, what is known; not a day of nothing.
  const firsts = history.nodes.flatMap((/** @type {NodeHistory} */ { spans, runs }) => [...spans.slice(0, 1), ...runs])
    .map((/** @type {{began: number}} */ { began }) => began);
  const known = history.ended - Math.min(history.ended, ...firsts);
  const began = Math.max(history.began, history.ended - Math.max(3600, 1.25 * known));
  past = { history: { ...history, began }, ends: new Map(), last: history.ended };
  for (const { id, eta_s: left } of items) if (left !== null) past.ends.set(id, history.ended + left);
  looked = performance.now();
}

installPage();
addEventListener("resize", () => nodeRows.forEach(({ open, curves }) => open && curves?.draw()));
const reload = throttled(load, 1000);
on("cluster", reload);
on("run", reload);
onCatchUp(reload);
load();
// Poll the figures of GPUs while this page is open, instead of an event to every open page.
setInterval(() => !document.hidden && reload(), LOOK_MS);
