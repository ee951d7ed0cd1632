/** The page of a rollout: its result, its stages, each gate with its evidence. */

import { get, post } from "../api.js";
import { byId, fill, h, mount, throttled } from "../dom.js";
import { acts } from "../form.js";
import * as f from "../format.js";
import { noteBox } from "../note.js";
import { confirmed, showFailure, toast, tryTo } from "../notices.js";
import { installPage } from "../page.js";
import { stagePart, stagesLine } from "../rollout/stages.js";
import { showTabState, stateMark } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { read, write } from "../urlstate.js";

/** @typedef {import("../types.js").RolloutDetail} RolloutDetail */

const ref = byId("rollout").dataset.rollout ?? "";
const head = byId("rollout-head");
const showNote = noteBox(head);
const failure = h("div");
const line = h("div");
const parts = h("div");
const notes = h("div");
mount(byId("rollout-body"), failure, line, parts, notes);
/** @type {RolloutDetail | null} */
let rollout = null;
const opened = new Set((read("open") ?? "").split(",").filter(Boolean));
const folded = new Set((read("fold") ?? "").split(",").filter(Boolean));

/** Return whether a stage is open: the user opened it, or it is the current or last one. @param {string} name */
const isOpen = (name) => opened.has(name) || (name === rollout?.stage && !folded.has(name));

/** @param {string} name @param {boolean} open */
function keep(name, open) {
  opened.delete(name);
  folded.delete(name);
  if (open) opened.add(name);
  else folded.add(name);
  write({ open: [...opened].join(","), fold: [...folded].join(",") });
}

/** @param {RolloutDetail} it */
function verdict(it) {
  const at = it.stages.find((stage) => stage.name === it.stage);
  const where = at ? `stage ${at.number} of ${it.stages.length}, ${at.title}` : "its first stage";
  if (it.state === "passed") return `Passed: all ${it.stages.length} stages.`;
  if (it.state === "running") return `At ${where}.`;
  if (it.state === "cancelled") return `Cancelled at ${where}.`;
  return `Stopped at ${where}: ${at?.reason ?? it.reason ?? "a gate failed"}`;
}

/** @param {RolloutDetail} it */
async function cancel(it) {
  const yes = await confirmed({
    title: `Cancel ${it.name}?`,
    body: h(
      "p", {}, "No more runs are started, and the current one is stopped without saving. Recorded verdicts stay.",
    ),
    yes: "Cancel the rollout",
    danger: true,
  });
  if (!yes) return;
  await tryTo(async () => {
    await post(`/rollouts/${it.id}/cancel`);
    toast("Cancelling.");
    reload();
  });
}

/** @param {RolloutDetail} it */
async function putAway(it) {
  await tryTo(async () => {
    await post(`/rollouts/${it.id}/${it.archived ? "unarchive" : "archive"}`);
    toast(it.archived ? "It is listed again." : "Archived: hidden from lists. Its runs stay listed.");
    reload();
  });
}

/** @param {RolloutDetail} it */
function drawHead(it) {
  showTabState(it.name, it.state);
  fill(
    head,
    h("div.crumbs", {}, h("a", { href: "/rollouts" }, "Rollouts"), ` / ${it.project}`),
    h(
      "div.head-line",
      {},
      h("h1", {}, it.name),
      h("span.mono.dim", {}, it.id),
      it.archived && h("span.tag", {}, "archived"),
      it.tags.map((tag) => h("span.tag", {}, tag)),
      h(
        "div.actions",
        {},
        h("a.button", { href: `/api/v1/reports/${it.id}`, target: "_blank", rel: "noopener" }, "Report"),
        it.run_id && h("a.button", { href: `/runs/${it.run_id}` }, "The run on all GPUs"),
        it.state === "running"
          ? h("button.danger", acts({ type: "button", onclick: () => cancel(it) }), "Cancel")
          : h("button", acts({ type: "button", onclick: () => putAway(it) }), it.archived ? "Unarchive" : "Archive"),
      ),
    ),
    h(
      "div.status-line", {}, stateMark(it.state), h("span", {}, "submitted ", f.time(it.created_at)),
      it.ended_at !== null
        && h("span", {}, "took ", f.duration(it.ended_at - it.created_at), ", ended ", f.time(it.ended_at)),
      it.cost && h("span.cost", { title: f.COST }, it.cost.text),
    ),
    h("p.verdict", { id: "verdict" }, verdict(it)),
  );
}

/** @param {RolloutDetail} it */
function drawStages(it) {
  fill(line, stagesLine(it, (name) => {
    keep(name, true);
    const part = /** @type {HTMLDetailsElement | null} */ (document.getElementById(`stage-${name}`));
    if (part) part.open = true;
  }));
  fill(notes, it.notes.length > 0 && h("h2", {}, "Notes"), it.notes.map((note) => h("p.note", {}, note)));
  fill(parts, it.stages.map((stage) => stagePart(stage, isOpen(stage.name), (open) => keep(stage.name, open))));
}

let drawn = "";
async function load() {
  try {
    const fresh = /** @type {RolloutDetail} */ (await get(`/rollouts/${encodeURIComponent(ref)}`));
    const first = rollout === null;
    rollout = fresh;
    failure.replaceChildren();
    const state = JSON.stringify(fresh);
    if (state === drawn) return;
    drawn = state;
    drawHead(fresh);
    showNote(`/rollouts/${fresh.id}`, fresh);
    drawStages(fresh);
    if (first && location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
  } catch (error) {
    if (!rollout) showFailure(head, error);
    else showFailure(failure, error);
  }
}

installPage();
const reload = throttled(load, 1500);
const isOurs = (/** @type {string} */ id) =>
  rollout?.stages.some((stage) => stage.runs.some(({ run }) => run.id === id)) ?? false;
on("rollout", ({ id }) => {
  if (!rollout || id === rollout.id) reload();
});
on("run", ({ id }) => isOurs(id) && reload());
on("metrics", ({ run_id: id }) => isOurs(id) && reload());
onCatchUp(load);
load();
