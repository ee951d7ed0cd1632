/** The system tab: curves of time, GPUs and memory, then attempts and hardware. */

import { get } from "../api.js";
import { groupOf } from "../charts/metric_groups.js";
import { dataTable, fill, h, input, mount } from "../dom.js";
import * as f from "../format.js";
import { runBoard } from "./curves.js";
import { places } from "./header.js";
/** @import { RunDetail } from "../types.js" */

/** How a step's time divides, and what each GPU of a node has a value of: one chart with a line a GPU. */
const FIRST = ["step_time_s, data_wait_s", ...["utilization", "memory_used_bytes", "power_watts", "temperature_celsius",
  "clock_mhz"].map((name) => `system/gpu*_${name}`)];
/** Prefixes of metrics about the machine rather than the model. */
const GROUPS = ["speed", "ranks", "memory", "gpu", "system"];

/** @param {import("../types.js").AttemptView} attempt */
function outcome(attempt) {
  if (attempt.exited_at === null) return attempt.open ? "running" : f.NONE;
  if (attempt.signal) return `${attempt.outcome ? `${attempt.outcome}, ` : ""}killed (${attempt.signal})`;
  const code = attempt.exit_code === null ? "" : `, exit ${attempt.exit_code}`;
  // One that was given up has no exit: its cause is what is known of its end.
  return `${attempt.outcome ?? attempt.cause?.replaceAll("_", " ") ?? "ended"}${code}`;
}

/** @param {RunDetail} run */
function attempts(run) {
  if (!run.attempts.length) return h("p.hint", {}, "It has not been started yet.");
  const rows = [...run.attempts].reverse().map((one) =>
    h(
      "tr",
      {},
      h("td.num", {}, one.number),
      h("td", {}, places(one) || f.NONE),
      h("td.mono", {}, one.resume_from ?? "the beginning"),
      h("td", {}, f.time(one.created_at, { seconds: true })),
      h("td", {}, one.exited_at === null ? f.NONE : f.duration(one.exited_at - one.created_at)),
      h("td", {}, outcome(one)),
      h("td.wrap.dim", {}, one.message),
    )
  );
  const heads = [".num.shrink attempt", "placed on", "resumed from", "began", "took", "outcome", ""];
  return dataTable("Attempts", heads, rows);
}

const PACKAGES = "host.distributions.";

/**
 * Return the facts of a start by their paths, without packages and counts that a program need not declare.
 *
 * @param {Record<string, unknown>} data
 */
export function startFacts(data) {
  const undeclared = (/** @type {string} */ path) => ["parameters", "tokens_per_step", "total_steps"]
    .includes(path) && Number(data[path]) <= 1;
  return [...f.flatten(data)].filter(([path]) => !path.startsWith(PACKAGES)
    && !["kind", "time", "attempt", "schema_version"].includes(path) && !undeclared(path));
}

/** Return the installed packages with their versions. @param {Record<string, unknown>} data */
export const packagesOf = (data) => [...f.flatten(data)].filter(([path]) => path.startsWith(PACKAGES))
  .map(([path, version]) => `${path.slice(PACKAGES.length)} ${version}`);

/** @param {import("../types.js").EventView | undefined} started */
function hardware(started) {
  if (!started) return h("p.hint", {}, "The trainer reports its device at the start.");
  const packages = packagesOf(started.data);
  // Not by the list that is drawn here: drawn again, another one is in the page.
  const search = (/** @type {any} */ { target: { value, nextElementSibling: list } }) =>
    fill(list, packages.filter((one) => one.toLowerCase().includes(value.toLowerCase())).join(", "));
  const field = { type: "search", placeholder: "search", "aria-label": "Search packages", oninput: search };
  return [h("dl.facts.two", {}, startFacts(started.data).map(([path, value]) => [
    h("dt", { title: path }, path.replaceAll("_", " ").replace(" s.", ": ").replaceAll(".", " ")),
    h("dd", {}, path.startsWith("startup_s.") ? f.metric("startup_s", value) : specValueOf(value, path)),
  ])), packages.length > 0 && h(
    "details", {}, h("summary", {}, `${f.integer(packages.length)} packages`), input(field),
    h("p.mono", {}, packages.join(", ")),
  )];
}

/** @param {unknown} value @param {string} path */
function specValueOf(value, path) {
  if (Array.isArray(value)) return value.join(" ");
  if (typeof value === "string" || path.endsWith("pid")) return String(value);
  return path.endsWith("_bytes") ? f.bytes(value) : f.specValue(value, path);
}

/** @param {HTMLElement} place @param {RunDetail} run @returns {import("./tabs.js").OpenTab} */
export function openSystem(place, run) {
  const attemptsPlace = h("div", {}, attempts(run));
  const charts = h("div");
  const facts = h("div");
  const tab = runBoard(
    // What it was forked from ran elsewhere.
    charts, { ...run, forked_from: null }, { pins: "system-pins", charts: FIRST.join(";") }, {
      pauseMs: 5000,
      sign: ({ attempt }) => String(attempt),
      async look(board) {
        const [infos, events] = await Promise.all([get(`/runs/${run.id}/metrics`), get(`/runs/${run.id}/events`)]);
        const names = infos.map((/** @type {any} */ info) => info.name);
        // With the loss, whose cursor the others share.
        const shown = (/** @type {string} */ name) => name === "train/loss" || GROUPS.includes(groupOf(name));
        board.setMetrics(names.filter(shown));
        fill(facts, hardware(events.filter((/** @type {any} */ event) => event.kind === "started").at(-1)));
      },
    },
  );
  mount(
    place, h("h2.unseen", {}, "Curves"), tab.board.bar.element, charts, h("h2", {}, "Attempts"), attemptsPlace,
    h("h2", {}, "Device"), facts,
  );
  let drawn = run.attempts;
  return {
    ...tab,
    run(next) {
      // A new fetch of the run replaces the list; an event keeps it.
      if (next.attempts !== drawn) fill(attemptsPlace, attempts(next));
      drawn = next.attempts;
      tab.run(next);
    },
  };
}
