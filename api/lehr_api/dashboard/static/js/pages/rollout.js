/** The page of a rollout: its result, its stages, each gate with its evidence. */

import { get } from "../api.js";
import { byId, fill, h, mount, throttled } from "../dom.js";
import { acts, chip, factList, openForm, order } from "../form.js";
import * as f from "../format.js";
import { noteBox } from "../note.js";
import { showFailure, tryTo } from "../notices.js";
import { installPage } from "../page.js";
import { keep } from "../patch.js";
import { stagePart, stagesLine } from "../rollout/stages.js";
import { showTabState, stateMark } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { read, write } from "../urlstate.js";
/** @import { RolloutDetail } from "../types.js" */

const ref = byId("rollout").dataset.rollout ?? "";
const head = byId("rollout-head");
const note = keep(h("div.note-box"));
const showNote = noteBox(note);
const [failure, stages, notes] = [h("div"), h("div"), h("div")];
mount(byId("rollout-body"), failure, stages, notes);
/** @type {RolloutDetail | null} */
let rollout = null;
/** The stage that is shown; "" for the current or last one. */
let chosen = location.hash.replace("#stage-", "") || (read("stage") ?? "");

/** @param {RolloutDetail} it */
function verdict(it) {
  const at = it.stages.find((stage) => stage.name === it.stage);
  const where = at ? `stage ${at.number} of ${it.stages.length}, ${at.title}` : "its first stage";
  if (it.state === "passed") return `Passed: all ${it.stages.length} stages.`;
  if (it.state === "running") return `At ${where}.`;
  if (it.state === "cancelled") return `Cancelled at ${where}.`;
  return `Stopped at ${where}: ${at?.reason ?? it.reason ?? "a gate failed"}`;
}

/** @param {RolloutDetail} it @param {string} verb @param {string} done */
async function change(it, verb, done) {
  await order(`/rollouts/${it.id}/${verb}`, done);
  reload();
}

/** @param {RolloutDetail} it */
const cancel = (it) => openForm({
  title: `Cancel ${it.name}?`,
  fields: h(
    "p", {}, "No more runs are started, and the current one is stopped without saving. Recorded verdicts stay.",
  ),
  yes: "Cancel the rollout",
  danger: true,
  act: () => change(it, "cancel", "Cancelling."),
});

/** @param {RolloutDetail} it */
const putAway = (it) => tryTo(() => (it.archived
  ? change(it, "unarchive", "It is listed again.")
  : change(it, "archive", "Archived: hidden from lists. Its runs stay listed.")));

/** @param {RolloutDetail} it */
function drawHead(it) {
  showTabState(it.name, it.state);
  fill(
    head,
    h(
      "div.head-line", {}, h("span.crumbs", {}, h("a", { href: "/rollouts" }, "Rollouts"), ` / ${it.project} /`),
      h("h1", {}, it.name), it.archived && h("span.tag", {}, "archived"), stateMark(it.state),
      it.ended_at !== null && h("span", {}, "took ", f.duration(it.ended_at - it.created_at)),
      it.cost && h("span.dim", { title: it.cost.text }, it.cost.text.split(/[,;]/)[0]),
      h(
        "div.actions", {}, it.run_id && h("a.button", { href: `/runs/${it.run_id}` }, "The run on all GPUs"),
        h("a.button", { href: `/api/v1/reports/${it.id}`, target: "_blank", rel: "noopener" }, "Report"),
        it.state === "running"
          ? h("button.danger", acts({ type: "button", onclick: () => cancel(it) }), "Cancel")
          : h("button", acts({ type: "button", onclick: () => putAway(it) }), it.archived ? "Unarchive" : "Archive"),
      ),
    ),
    h("p.verdict", { id: "verdict" }, verdict(it)),
    h(
      "div.chips", {}, chip("", ["submitted ", f.time(it.created_at)], factList([
        ["id", h("span.mono", {}, it.id)], ["submitted", f.time(it.created_at)],
        ["ended", it.ended_at !== null && f.time(it.ended_at)],
        ["cost", it.cost && h("span", { title: f.COST }, it.cost.text)],
      ])), it.tags.map((tag) => h("a.tag", { href: `/?filter=tag:${encodeURIComponent(tag)}` }, tag)), note,
    ),
  );
}

/** @param {RolloutDetail} it */
function drawStages(it) {
  const shown = it.stages.find(({ name }) => name === chosen) ?? it.stages.find(({ name }) => name === it.stage)
    ?? it.stages[0];
  fill(stages, stagesLine(it, shown.name, (name) => {
    chosen = name;
    write({ stage: name });
    drawStages(it);
  }), stagePart(shown));
  fill(notes, it.notes.length > 0 && h("h2", {}, "Notes"), it.notes.map((text) => h("p.note", {}, text)));
}

let drawn = "";
async function load() {
  try {
    const fresh = /** @type {RolloutDetail} */ (await get(`/rollouts/${encodeURIComponent(ref)}`));
    rollout = fresh;
    failure.replaceChildren();
    const state = JSON.stringify(fresh);
    if (state === drawn) return;
    drawn = state;
    drawHead(fresh);
    showNote(`/rollouts/${fresh.id}`, fresh);
    drawStages(fresh);
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
