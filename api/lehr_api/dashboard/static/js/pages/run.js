/** The page of a run: a live header, and tabs. */

import { get } from "../api.js";
import { byId, h, throttled } from "../dom.js";
import { shortcut } from "../keys.js";
import { noteBox } from "../note.js";
import { showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { keep } from "../patch.js";
import { openCurves } from "../run/curves.js";
import { aboutQueue, canForkFrom, drawHeader, LOOK_MS, looksAgain, tileNames } from "../run/header.js";
import { Tabs } from "../run/tabs.js";
import { progress, showTabState } from "../status.js";
import { on, onCatchUp } from "../stream.js";
/** @import { RunDetail } from "../types.js" */

/** @type {import("../run/tabs.js").Tab[]} */
const TABS = [
  { key: "curves", title: "Curves", open: (place, of) => openCurves(place, of, go.log) },
  { key: "samples", title: "Samples", open: async (...of) => (await import("../run/details.js")).openSamples(...of) },
  {
    key: "checkpoints", title: "Checkpoints",
    open: async (...of) => (await import("../run/checkpoints.js")).openCheckpoints(...of),
  },
  { key: "logs", title: "Logs", open: async (...of) => (await import("../run/logs.js")).openLogs(...of) },
  { key: "config", title: "Config", open: async (...of) => (await import("../run/config.js")).openConfig(...of) },
  { key: "events", title: "Events", open: async (...of) => (await import("../run/details.js")).openEvents(...of) },
  { key: "system", title: "System", open: async (...of) => (await import("../run/system.js")).openSystem(...of) },
];

const VERSUS = "versus:val/loss";
const ref = byId("run").dataset.run ?? "";
const head = byId("run-head");
const note = keep(h("div.note-box"));
const showNote = noteBox(note);
const tabs = new Tabs(byId("run-tabs"), byId("run-body"), TABS);
/** @type {RunDetail | null} */
let run = null;
/** @type {import("../run/header.js").About} */
const about = {
  sweep: null, parent: null, canFork: false, position: null, expected: null, warnings: [], series: [], versus: null,
};
const show = (/** @type {string} */ tab) => async (/** @type {number | string} */ where) => {
  await tabs.open(tab);
  tabs.opened?.at?.(where);
};
const go = { curve: show("curves"), log: show("logs") };

function draw() {
  if (!run) return;
  showTabState(run.name, run.state, progress(run));
  drawHeader(head, run, about, go, note);
  showNote(`/runs/${run.id}`, run);
}

/** @param {RunDetail} shown */
async function learn(shown) {
  const nameOf = async (/** @type {string | null} */ path) => (path === null ? null : (
    await get(path, path.startsWith("/sweeps/") ? { limit: 1 } : {}).catch(() => null)
  )?.name ?? null);
  const name = tileNames(shown);
  const [sweep, parent, checkpoints, queue, series, events, judged] = await Promise.all([
    about.sweep ?? nameOf(shown.sweep_id && `/sweeps/${shown.sweep_id}`),
    about.parent ?? nameOf(shown.forked_from && `/runs/${shown.forked_from}`),
    shown.step === null ? [] : get(`/runs/${shown.id}/checkpoints`),
    shown.state === "queued" ? get("/queue").catch(() => []) : [],
    name.length ? get(`/runs/${shown.id}/series`, { name, points: 60 }) : [],
    shown.alerts.length > shown.diagnosis.length ? get(`/runs/${shown.id}/events`) : [],
    get("/values", { run: [shown.id], metric: VERSUS }),
  ]);
  const warnings = events.filter((/** @type {any} */ { kind }) => kind === "warning");
  Object.assign(
    about, { sweep, parent, canFork: canForkFrom(checkpoints), series, warnings, versus: judged.metrics[VERSUS][0] },
    aboutQueue(queue, shown.id, Date.now() / 1000),
  );
}

async function load() {
  try {
    run = /** @type {RunDetail} */ (await get(`/runs/${encodeURIComponent(ref)}`));
    draw();
    tabs.show(run);
    await learn(run);
    draw();
  } catch (error) {
    if (!run) {
      showFailure(head, error);
      // Without a run there is nothing that the tabs could show.
      byId("run-tabs").hidden = true;
    }
  }
}

const reload = throttled(load, 1000);
const soon = throttled(async () => draw(), 500);

installPage();
TABS.forEach((tab, i) => shortcut(String(i + 1), `the run's ${tab.title.toLowerCase()}`, () => tabs.open(tab.key)));
on("run", (/** @type {import("../types.js").RunView} */ view) => {
  if (!run || view.id !== run.id) return;
  const alerted = view.alerts.join() !== run.alerts.join();
  const moved = view.state !== run.state || view.attempt !== run.attempt || alerted;
  run = { ...run, ...view };
  soon();
  tabs.show(run);
  tabs.opened?.metrics?.(run.latest);
  if (moved) reload(); // The event has neither the attempts nor what explains an alert.
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
setInterval(() => {
  if (run && !document.hidden && looksAgain(run)) reload();
}, LOOK_MS);
load();
