/** The parts of every page: totals under the header, state of the connection, keys. */

import { get, logOut, serverTime } from "./api.js";
import { byId, fill, h, throttled } from "./dom.js";
import { duration, integer } from "./format.js";
import { install as installKeys } from "./keys.js";
import { showKept } from "./notices.js";
import { FiguresAge, REPORTING } from "./status.js";
import { on, onCatchUp, onConnection } from "./stream.js";

const TOTALS_MS = 5000;

/** @param {string[]} states */
async function count(states) {
  const page = await get("/runs", { state: states, limit: 1 });
  return page.total ?? 0;
}

/** @param {number} n @param {string} word @param {string} href */
const part = (n, word, href) => h("a", { href }, h("strong", {}, integer(n)), ` ${word}`);

async function showTotals() {
  const [running, waiting, cluster] = await Promise.all([count(REPORTING), count(["queued"]), get("/cluster")]);
  const logical = cluster.nodes.some((/** @type {any} */ node) => node.logical);
  const gpus = logical ? "logical GPUs busy" : "GPUs busy";
  fill(
    byId("totals"),
    part(running, "running", `/?filter=state:${REPORTING}`),
    part(waiting, "waiting", "/?filter=state:queued"),
    h(
      "a", { href: "/cluster" }, h("strong", {}, `${integer(cluster.gpus_busy)}/${integer(cluster.gpus_total)}`),
      ` ${gpus}`,
    ),
    cluster.state !== "up" && h("span.warn", {}, cluster.message ?? `the cluster is ${cluster.state}`),
  );
}

/** Close menus at a click outside of them and at Escape. */
function closeMenus() {
  const open = () => /** @type {NodeListOf<HTMLDetailsElement>} */ (document.querySelectorAll("details.menu[open]"));
  addEventListener("pointerdown", (event) => {
    for (const menu of open()) if (!menu.contains(/** @type {Node} */ (event.target))) menu.open = false;
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    for (const menu of open()) {
      menu.open = false;
      menu.querySelector("summary")?.focus();
    }
  });
}

export function installPage() {
  installKeys();
  closeMenus();
  showKept();
  document.querySelector('form[action="/logout"]')?.addEventListener("submit", logOut);
  const connection = byId("connection");
  onConnection((state) => {
    connection.className = `connection ${state}`;
    connection.textContent = { connecting: "", live: "live", lost: "no answer; trying again" }[state];
    connection.title = state === "lost" ? "Lehr's server does not answer. Start it on its machine: lehr up" : "";
  });
  const age = new FiguresAge();
  on("run", (run) => age.take(run, serverTime()));
  onCatchUp(() => age.runs.clear()); // What is shown is fetched again.
  setInterval(() => {
    const seconds = age.late;
    byId("age").textContent = seconds === null ? "" : `live figures come ${duration(seconds)} late`;
  }, 1000);
  // The totals may lag by a few seconds, but must be cheap.
  const refresh = throttled(() => showTotals().catch(() => undefined), TOTALS_MS);
  // Each step of a run is an event, but only another state changes the totals.
  /** @type {Map<string, string>} */
  const states = new Map();
  on("run", ({ id, state, archived }) => {
    const now = `${state} ${archived}`;
    if (states.get(id) === now) return;
    states.set(id, now);
    refresh();
  });
  on("cluster", refresh);
  onCatchUp(refresh);
  // Let the page send its own requests first.
  setTimeout(() => {
    refresh();
    if (navigator.serviceWorker && "PushManager" in globalThis) import("./push.js");
  });
}
