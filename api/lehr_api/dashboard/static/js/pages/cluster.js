/** The page of the cluster: which run holds which GPU since when, and the queue. */

import { get } from "../api.js";
import { drainButton, untilButton } from "../cluster/drain.js";
import { byId, fill, h, scrollable, throttled } from "../dom.js";
import * as f from "../format.js";
import { ABOUT, memoryUsed, temperature } from "../gpus.js";
import { empty, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { priorityButton } from "../cluster/priority.js";
import { alike, expectation } from "../queue.js";
import { on, onCatchUp } from "../stream.js";

/**
 * @typedef {import("../types.js").ClusterView} ClusterView
 * @typedef {import("../types.js").NodeView} NodeView
 * @typedef {import("../types.js").GpuView} GpuView
 * @typedef {import("../types.js").QueueEntry} QueueEntry
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
  return scrollable(
    h(
      "table",
      { "aria-label": "Queue" },
      h("thead", {}, h(
        "tr", {}, h("th.num.shrink", { scope: "col" }, ""), h("th", { scope: "col" }, "run"),
        h("th", { scope: "col" }, "needs"), h("th.num", { scope: "col" }, "priority"),
        h("th", { scope: "col" }, "why it waits"), h("th", { scope: "col" }, "expected start"),
        h("th", { scope: "col" }, "waits since"),
      )),
      h(
        "tbody",
        {},
        alike(queue).map(([entry, ...more]) =>
          h(
            "tr",
            { "data-run": entry.run_id },
            h("td.num", {}, more.length ? `${entry.position}–${more[more.length - 1].position}` : entry.position),
            h("td", {}, h("a.name", { href: `/runs/${entry.run_id}` }, entry.name), more.length > 0 && h(
              "span.dim", { title: more.map((one) => one.name).join(", ") },
              ` to ${more[more.length - 1].name}: ${more.length + 1} runs`,
            )),
            h(
              "td", {},
              `${entry.gpus} × ${entry.gpu_type ?? "GPU"}${entry.nodes > 1 ? ` on ${entry.nodes} nodes` : ""}`,
            ),
            h("td.num", {}, priorityButton([entry, ...more])),
            h("td.wrap", {}, entry.reason),
            h("td.wrap", {}, expected(entry)),
            h("td", {}, f.time(entry.queued_at)),
          ),
        ),
      ),
    ),
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
