/** The list of rollouts with their progress, newest first. */

import { get } from "../api.js";
import { byId, fill, h, scrollable, throttled } from "../dom.js";
import * as f from "../format.js";
import { rowKeys } from "../keys.js";
import { listFilter } from "../listfilter.js";
import { empty, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { stateMark } from "../status.js";
import { on, onCatchUp } from "../stream.js";

/** @typedef {import("../types.js").RolloutView} RolloutView */

const place = byId("rollouts");
/** @type {RolloutView[]} */
let rollouts = [];
/** @type {string | null} */
let cursor = null;
let at = -1;

/** @param {RolloutView} rollout */
function stages(rollout) {
  return h("ol.progress-stages.plain", {}, Object.entries(rollout.progress).map(([name, state]) => h("li", { title: `${name}: ${state}` }, stateMark(state, name.replaceAll("_", " ").replace(/\b(gpus?|cpu)\b/g, (word) => word.toUpperCase().replace("GPUS", "GPUs"))), h("span.unseen", {}, ` ${state}`))));
}

/** @param {RolloutView} rollout @param {number} i */
function row(rollout, i) {
  return h(
    i === at ? "tr.at" : "tr",
    { "data-rollout": rollout.id },
    h("td", {}, h("a.name", { href: `/rollouts/${rollout.id}` }, rollout.name)),
    h("td", {}, stateMark(rollout.state)),
    h("td", {}, stages(rollout)),
    h("td.grow.dim", { title: rollout.reason }, rollout.reason),
    h("td", {}, rollout.project),
    h("td", {}, f.time(rollout.created_at)),
  );
}

function draw() {
  if (!rollouts.length && looked()) {
    fill(place, empty("No rollout matches this filter"));
    return;
  }
  if (!rollouts.length) {
    fill(
      place,
      empty(
        "No rollouts yet",
        h("p", {}, "A rollout takes one run to all its GPUs in four stages: on the CPU, on one GPU, on two, on all. Each stage must pass its gates, so a bug is found in the cheapest stage:"),
        h("pre", {}, "lehr rollout sweeps/rollout_small.yaml"),
      ),
    );
    return;
  }
  fill(
    place,
    scrollable(
      h(
        "table.rollouts",
        { "aria-label": "Rollouts" },
        h("thead", {}, h("tr", {}, ["name", "state", "stages", "reason", "project", "submitted"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, rollouts.map(row)),
      ),
    ),
    cursor && h("p.runs-foot", {}, h("button", { type: "button", onclick: more }, "Older rollouts")),
  );
}

async function load() {
  const asked = looked();
  try {
    const page = await get("/rollouts", { limit: 100, search: asked });
    // Somebody has typed on in the meantime.
    if (asked !== looked()) return;
    const fresh = new Set(page.items.map((/** @type {RolloutView} */ rollout) => rollout.id));
    const older = rollouts.filter((rollout) => !fresh.has(rollout.id));
    rollouts = [...page.items, ...older];
    if (!older.length) cursor = page.next_cursor;
    draw();
  } catch (error) {
    if (!rollouts.length) showFailure(place, error);
  }
}

async function more() {
  const from = cursor;
  const page = await get("/rollouts", { limit: 100, cursor: from, search: looked() });
  // Two quick clicks would load the same page twice.
  if (cursor !== from) return;
  rollouts = [...rollouts, ...page.items];
  cursor = page.next_cursor;
  draw();
}

const looked = listFilter(() => {
  rollouts = [];
  cursor = null;
  load();
});
installPage();
rowKeys({
  count: () => rollouts.length,
  show: (index) => {
    at = index;
    draw();
  },
  open: (index) => location.assign(`/rollouts/${rollouts[index].id}`),
});
const reload = throttled(load, 2000);
on("rollout", reload);
onCatchUp(reload);
load();
