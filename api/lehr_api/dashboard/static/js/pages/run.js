/** The page of a run: a live header, and tabs. */

import { get } from "../api.js";
import { byId, throttled } from "../dom.js";
import { shortcut } from "../keys.js";
import { showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { openConfig } from "../run/config.js";
import { openCurves } from "../run/curves.js";
import { openCheckpoints, openEvents, openSamples } from "../run/details.js";
import { drawHeader } from "../run/header.js";
import { openLogs } from "../run/logs.js";
import { openSystem } from "../run/system.js";
import { Tabs } from "../run/tabs.js";
import { noteBox } from "../note.js";
import { progress } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { showTabState } from "../tab_state.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */

const TABS = [
  { key: "curves", title: "Curves", open: openCurves },
  { key: "samples", title: "Samples", open: openSamples },
  { key: "checkpoints", title: "Checkpoints", open: openCheckpoints },
  { key: "logs", title: "Logs", open: openLogs },
  { key: "config", title: "Config", open: openConfig },
  { key: "events", title: "Events", open: openEvents },
  { key: "system", title: "System", open: openSystem },
];

const ref = byId("run").dataset.run ?? "";
const head = byId("run-head");
const showNote = noteBox(head);
const tabs = new Tabs(byId("run-tabs"), byId("run-body"), TABS);
/** @type {RunDetail | null} */
let run = null;
/** @type {string | null} */
let sweepName = null;

function draw() {
  if (!run) return;
  showTabState(run.name, run.state, progress(run));
  drawHeader(head, run, sweepName);
  showNote(`/runs/${run.id}`, run);
}

async function load() {
  try {
    run = /** @type {RunDetail} */ (await get(`/runs/${encodeURIComponent(ref)}`));
    draw();
    tabs.show(run);
    if (run.sweep_id && sweepName === null) {
      const { name } = await get(`/sweeps/${run.sweep_id}`);
      sweepName ??= /** @type {string} */ (name);
      draw();
    }
  } catch (error) {
    if (!run) showFailure(head, error);
  }
}

const reload = throttled(load, 1000);
const soon = throttled(async () => draw(), 500);

installPage();
TABS.forEach((tab, i) => shortcut(String(i + 1), `the run's ${tab.title.toLowerCase()}`, () => tabs.open(tab.key)));
on("run", (/** @type {import("../types.js").RunView} */ view) => {
  if (!run || view.id !== run.id) return;
  const moved = view.state !== run.state || view.attempt !== run.attempt;
  run = { ...run, ...view };
  soon();
  tabs.show(run);
  tabs.opened?.metrics?.(run.latest);
  if (moved) reload(); // The event does not contain the attempts.
});
on("metrics", ({ run_id: id, latest }) => {
  if (!run || id !== run.id) return;
  const step = Math.max(run.step ?? 0, ...Object.values(latest).map((one) => /** @type {any} */ (one).step));
  run = { ...run, step, latest: { ...run.latest, ...latest } };
  soon();
  tabs.show(run);
  tabs.opened?.metrics?.(run.latest);
});
on("log", (change) => {
  if (run && change.run_id === run.id) tabs.opened?.log?.(change);
});
onCatchUp(async () => {
  await load();
  tabs.opened?.catchUp?.();
});
load();
