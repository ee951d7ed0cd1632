/** The page of the cluster: which run holds which GPU since when, and the queue. */

import { get, post, put } from "../api.js";
import { ABOUT, alike, expectation, memoryUsed, temperature } from "../cluster.js";
import { byId, dataTable, fill, h, input, throttled } from "../dom.js";
import { acts, field, openForm } from "../form.js";
import * as f from "../format.js";
import { empty, showFailure, toast, tryTo } from "../notices.js";
import { installPage } from "../page.js";
import { on, onCatchUp } from "../stream.js";

/** @param {string} node @param {() => void} done */
function drain(node, done) {
  const reason = input({ maxlength: 500, required: true, autocomplete: "off" });
  openForm({
    title: `Drain ${node}?`,
    about: "No new runs are placed on it. Its running runs continue until they end.",
    fields: [field("reason", reason, "shown beside the node")],
    yes: "Drain the node",
    act: async () => {
      await post(`/cluster/nodes/${encodeURIComponent(node)}/exclude`, { reason: reason.value });
      toast(`${node} gets no new runs.`);
      done();
    },
  });
}

/** @param {string} node @param {() => void} done */
const readmit = (node, done) =>
  tryTo(async () => {
    await post(`/cluster/nodes/${encodeURIComponent(node)}/readmit`);
    toast(`${node} can get new runs.`);
    done();
  });

/**
 * Return the button of a node; none for one that has left: it gets runs again when it joins.
 *
 * @param {import("../types.js").NodeView} node
 * @param {() => void} done called after it has acted
 */
export function drainButton(node, done) {
  if (node.left) return null;
  if (node.excluded !== null) {
    return h(
      "button", acts({ type: "button", onclick: () => readmit(node.name, done) }, "admin"), `Readmit ${node.name}`,
    );
  }
  return h("button", acts({ type: "button", onclick: () => drain(node.name, done) }, "admin"), `Drain ${node.name}`);
}

/** @param {import("../types.js").NodeView} node @param {() => void} done */
function setUntil(node, done) {
  const end = input({ type: "datetime-local" });
  openForm({
    title: `Until when is ${node.name} available?`,
    about: "Five minutes before, its trainings save, are queued again, and resume on other nodes. No run starts on it that would lose work.",
    fields: [field("until", end, "in the time zone of this browser; empty: it has no end")],
    yes: "Set",
    act: async () => {
      await post(`/cluster/nodes/${encodeURIComponent(node.name)}/until`, {
        until: end.value ? new Date(end.value).getTime() / 1000 : null,
      });
      toast(end.value ? `${node.name} is available until then.` : `${node.name} has no end.`);
      done();
    },
  });
}

/** @param {import("../types.js").NodeView} node @param {() => void} done called after it has acted */
export const untilButton = (node, done) =>
  node.left ? null : h(
    "button", acts({ type: "button", onclick: () => setUntil(node, done) }, "admin"), `Set the end of ${node.name}`,
  );

/** @typedef {import("../types.js").QueueEntry} QueueEntry */

/** @param {QueueEntry[]} entries those of one row */
function change(entries) {
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
    onclick: () => change(entries),
  }),
  String(entries[0].priority),
);

/**
 * @typedef {import("../types.js").ClusterView} ClusterView
 * @typedef {import("../types.js").NodeView} NodeView
 * @typedef {import("../types.js").GpuView} GpuView
 */

const place = byId("cluster");

const LOOK_MS = 5000;

/** @param {GpuView} gpu */
function figures(gpu) {
  return h(
    "span.gpu-now",
    { title: ABOUT },
    h("span.meter", { "aria-hidden": "true" }, h("i", { vars: { "--share": gpu.utilization ?? 0 } })),
    h("span", {}, h("span.unseen", {}, "utilization "), f.percent(gpu.utilization)),
    h("span", {}, h("span.unseen", {}, "memory "), memoryUsed(gpu)),
    h("span", {}, h("span.unseen", {}, "temperature "), temperature(gpu)),
  );
}

/** @param {GpuView} gpu @param {NodeView} node */
function cell(gpu, node) {
  // Figures of a node that does not respond are old, and its GPUs cannot be given out.
  const now = !node.logical && node.alive && figures(gpu);
  if (
    gpu.run_name === null && (!node.alive || node.excluded !== null || node.problems.length > 0 || node.ending !== null)
  ) {
    return h(
      "li.gpu.gone", {}, h("span.dim", {}, `GPU ${gpu.index}`),
      h("span.who", {}, node.alive ? "not given out" : node.left ? "has left" : "no answer"), now,
    );
  }
  if (gpu.run_name === null) {
    return h("li.gpu.free", {}, h("span.dim", {}, `GPU ${gpu.index}`), h("span.who", {}, "free"), now);
  }
  return h(
    "li.gpu.busy",
    {},
    h("span.dim", {}, `GPU ${gpu.index}`, gpu.since !== null && [" since ", f.time(gpu.since)]),
    gpu.run_id === null
      ? h("span.who", {}, gpu.run_name)
      : h("a.who", { href: `/runs/${gpu.run_id}`, title: gpu.run_name ?? gpu.run_id }, gpu.run_name ?? gpu.run_id),
    now,
  );
}

/** @param {NodeView} node */
function nodeRow(node) {
  const kinds = [...new Set(node.gpus.map((gpu) => gpu.name))];
  const memory = node.gpus[0]?.memory_bytes;
  const busy = node.gpus.filter((gpu) => gpu.run_name !== null).length;
  return h(
    "section.node",
    { "aria-label": `Node ${node.name}` },
    h(
      "div.node-head",
      {},
      h("h2", {}, node.name),
      node.left && h("span.dim", {}, "has left the cluster; lehr node join brings it back"),
      !node.alive && !node.left && h("span.bad", {}, `✕ ${node.away ?? "does not answer"}`),
      node.problems.map((problem) => h("span.bad", {}, `✕ cannot be used: ${problem}`)),
      node.excluded !== null && !node.left && h("span.bad", {}, `✕ excluded: ${node.excluded}`),
      node.until !== null
        && !node.left
        && h(node.ending === null ? "span.dim" : "span.warn", {}, "available until ", f.time(node.until)),
      h(
        "span.dim", {},
        node.logical
          ? `${node.gpus.length} logical GPUs: training runs on the CPU`
          : `${node.gpus.length} × ${kinds.join(", ")}${memory ? `, ${Math.round(memory / 2 ** 30)} GiB each` : ""}`,
      ),
      h("span.dim", {}, `${busy} busy`),
      node.cpus !== null && h(
        "span.dim", {}, `${f.integer(node.cpus)} CPUs`,
        node.alive && node.cpu_utilization !== null && `, ${f.percent(node.cpu_utilization)} in use`,
      ),
      node.alive
        && node.ram_bytes !== null
        && h("span.dim", {}, `${f.bytes(node.ram_used_bytes)} of ${f.bytes(node.ram_bytes)} memory in use`),
      h("span.mono.dim", {}, node.address),
      !node.alive
        && node.last_seen_at !== null
        && h("span.dim", {}, "last seen ", f.time(node.last_seen_at, { seconds: true })),
      drainButton(node, () => reload()),
      untilButton(node, () => reload()),
    ),
    h(node.logical ? "ul.gpus.plain" : "ul.gpus.plain.real", {}, node.gpus.map((gpu) => cell(gpu, node))),
  );
}

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
      h(
        "td", {}, `${entry.gpus} × ${entry.gpu_type ?? "GPU"}${entry.nodes > 1 ? ` on ${entry.nodes} nodes` : ""}`,
      ),
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
  fill(
    place,
    cluster.state !== "up" && h(cluster.state === "down" ? "div.failure" : "div.alert", {}, cluster.message ?? (
      cluster.state === "starting" ? "The cluster is starting; this takes about ten seconds." : "The cluster is down."
    )),
    cluster.nodes.length
      ? cluster.nodes.map(nodeRow)
      : cluster.state === "up" && empty("No nodes", h("p", {}, "The cluster has no nodes yet.")),
    h("h2", {}, `Queue${queue.length ? ` (${queue.length})` : ""}`),
    queueTable(queue),
  );
}

let drawn = "";
async function load() {
  try {
    const [cluster, queue] = await Promise.all([get("/cluster"), get("/queue")]);
    const state = JSON.stringify([cluster, queue]);
    if (state === drawn) return;
    drawn = state;
    draw(cluster, queue);
  } catch (error) {
    if (!drawn) showFailure(place, error);
  }
}

installPage();
const reload = throttled(load, 1000);
on("cluster", reload);
on("run", reload);
onCatchUp(reload);
load();
// Poll the figures of GPUs while this page is open, instead of an event to every open page.
setInterval(() => !document.hidden && reload(), LOOK_MS);
