/** The page of a sweep: the verdict, the evidence, all trials. */

import { get } from "../api.js";
import { Board, SEVERAL_MS } from "../charts/board.js";
import { showFigure, swatch } from "../charts/drawing.js";
import { byId, checkbox, coded, fill, h, mount, throttled } from "../dom.js";
import * as f from "../format.js";
import { noteBox } from "../note.js";
import { showFailure, tryTo } from "../notices.js";
import { installPage } from "../page.js";
import { countsLine, showTabState } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { sweepActions } from "../sweep/actions.js";
import { boardRuns, boardSign } from "../sweep/axis.js";
import { showCampaign } from "../sweep/campaign.js";
import { Changes, PAGE, readSweep, standing, withNews, withoutCurves } from "../sweep/pages.js";
import { Parallel } from "../sweep/parallel.js";
import { trialsTable } from "../sweep/trials.js";
import { read, write } from "../urlstate.js";

/**
 * @typedef {import("../types.js").SweepDetail} SweepDetail
 * @typedef {import("../charts/board.js").BoardRun} BoardRun
 * @typedef {import("../types.js").SweepFigure} SweepFigure
 */

/** The most runs whose metrics one request returns. */
const ASKED = 150;
/** The lowest figure that the server draws, in pixels. */
const LOWEST = 200;
const ref = byId("sweep").dataset.sweep ?? "";
const head = byId("sweep-head");
const showNote = noteBox(head);
const figurePlace = h("div.figure", { id: "sweep-figure" });
const figureBar = h("div.bar");
const failure = h("div");
const campaign = h("section", { id: "campaign" });
const charts = h("div");
const seedBar = h("div.bar");
const legend = h("ul.legend");
const importance = h("div");
const parallel = new Parallel(h("div"));
const parallelSection = h("section", { hidden: true }, h("h2", {}, "Parallel coordinates"), parallel.place, importance);
const trials = h("div");
const more = h("div.bar");
/** How many trials are shown, at most. */
let shown = PAGE;
/** @type {SweepDetail | null} */
let sweep = null;
/** @type {SweepFigure | null} */
let figure = null;
let parameter = read("parameter");
const hidden = new Set((read("hide") ?? "").split(",").filter(Boolean));

const board = new Board(charts, [], { superseded: false, open: ["train", "val"], pauseMs: SEVERAL_MS });
const body = byId("sweep-body");
// Not before the head, which would push it away; its place must have its width.
body.style.visibility = "hidden";
mount(
  body,
  campaign,
  figureBar,
  figurePlace,
  failure,
  h("h2", {}, "Curves"),
  board.bar.element,
  seedBar,
  legend,
  charts,
  parallelSection,
  h("h2", {}, "Trials"),
  trials,
  more,
);
const runsNow = () => (sweep ? boardRuns(sweep, parameter, hidden) : []);

/** @type {string | null} */
let audited = null;
const audit = () => tryTo(async () => {
  audited = (await get(`${path}/audit`)).text;
  drawHead();
});

function drawHead() {
  if (!sweep) return;
  body.style.visibility = "";
  showTabState(sweep.name, sweep.state, sweep.steps_total ? sweep.steps_done / sweep.steps_total : null);
  showNote(`/sweeps/${sweep.id}`, sweep);
  fill(
    head,
    h("div.crumbs", {}, h("a", { href: "/sweeps" }, "Sweeps"), ` / ${sweep.project}`),
    h(
      "div.head-line",
      {},
      h("h1", {}, sweep.name),
      h("span.mono.dim", {}, sweep.id),
      sweep.tags.map((tag) => h("span.tag", {}, tag)),
      sweepActions(sweep),
    ),
    h(
      "div.status-line",
      {},
      countsLine(sweep.counts),
      h("span", {}, `${sweep.method} over ${sweep.parameters.join(" × ")}, ${sweep.metric} ${sweep.goal}d`),
      sweep.trials_remaining > 0 && h("span", {}, `${sweep.trials_remaining} to come`),
      h("span", {}, "submitted ", f.time(sweep.created_at)),
      sweep.cost && h("span.cost", { title: f.COST }, sweep.cost.text),
    ),
    // If the held-out sets differ, the verdict already states it.
    sweep.held_out_note && sweep.held_out !== "different" && h("div.alert", {}, sweep.held_out_note),
    figure && sweep.method !== "campaign" && h("p.verdict", { id: "verdict" }, figure.verdict),
    sweep.stopped && h("div.alert", {}, `No more trials are started: ${sweep.stopped}`),
    sweep.warnings.map((warning) => h("p.note", {}, warning)),
    (figure?.notes ?? sweep.notes)
      .filter((note) => note !== sweep?.held_out_note).map((note) => h("p.note", {}, coded(note))),
    sweep.spec.pruning?.name === "forecast" && h("p.note", { id: "audit" }, audited ?? h(
      "button.quiet", { type: "button", onclick: audit }, "What would this rule have stopped wrongly so far?",
    )),
  );
}

function drawCurves() {
  const runs = runsNow();
  board.setRuns(runs);
  board.bar.offer(sweep?.trials.map((trial) => trial.run) ?? []);
  /** @type {Map<string, BoardRun[]>} */
  const entries = new Map();
  for (const run of runs) {
    const key = board.meanOfSeeds ? (run.group ?? run.id) : run.id;
    entries.set(key, [...(entries.get(key) ?? []), run]);
  }
  fill(
    legend,
    [...entries].map(([key, [run, ...rest]]) => {
      const toggle = () => {
        for (const { id } of [run, ...rest]) {
          if (run.hidden) hidden.delete(id);
          else hidden.add(id);
        }
        write({ hide: [...hidden].join(",") });
        drawCurves();
      };
      const title = run.hidden ? "Show its curves" : "Hide its curves";
      return h(
        run.hidden ? "li.off" : "li",
        { key },
        h(
          "button.quiet", { type: "button", "aria-pressed": String(!run.hidden), title, onclick: toggle },
          swatch(run.stroke()), rest.length ? key : run.label,
          !rest.length && run.cut && h("span.dim", {}, " pruned"),
        ),
      );
    }),
  );
}

function drawTrials() {
  if (!sweep) return;
  const runs = new Map(runsNow().map((run) => [run.id, run]));
  fill(trials, trialsTable(sweep, (id) => {
    const run = runs.get(id);
    return run ? /** @type {any} */ (swatch(run.stroke())) : null;
  }));
  const left = sweep.trials_total - sweep.trials.length;
  more.hidden = left <= 0;
  fill(more, h("button", { type: "button", onclick: () => {
    shown += PAGE;
    changes.all = true;
    load();
  } }, `Show ${Math.min(PAGE, left)} more`), h(
    "span.dim", {}, `${sweep.trials.length} of ${sweep.trials_total} trials are shown, the best among them.`,
  ));
  const shares = Object.entries(figure?.importance ?? {});
  fill(importance, shares.length > 0 && h(
    "dl.facts.importance",
    { "aria-label": "Importance of the parameters" },
    shares.map(([path, share]) => [h("dt", { key: `name ${path}` }, path), h(
      "dd", { key: `share ${path}` },
      h("span.meter", { "aria-hidden": "true" }, h("i", { vars: { "--share": share } })), f.percent(share),
    )]),
  ), shares.length > 0 && h(
    "p.hint", {},
    "How much each parameter affects the metric. PED-ANOVA compares its values among the better half of the trials with those among all.",
  ));
  parallelSection.hidden = sweep.parameters.length < 2;
  if (parallelSection.hidden) return;
  parallel.draw(sweep);
}

function drawParameterChoice() {
  if (!sweep || sweep.parameters.length < 2) {
    figureBar.hidden = true;
    return;
  }
  const choose = (/** @type {Event} */ event) => {
    parameter = /** @type {HTMLSelectElement} */ (event.currentTarget).value;
    write({ parameter });
    load();
  };
  const select = h(
    "select", { "aria-label": "Parameter on the x axis", value: parameter ?? "", onchange: choose },
    sweep.parameters.map((path) => h("option", { value: path }, path)),
  );
  fill(figureBar, h("label.field", {}, "against", select));
}

function drawPlot() {
  if (figure) showFigure(figurePlace, figure.svg);
}

/** @param {string | null} asked the parameter on the x axis @returns {Promise<SweepFigure>} as large as its place */
const readFigure = (asked) => get(`${path}/figure`, {
  parameter: asked, width: figurePlace.clientWidth, height: Math.max(LOWEST, figurePlace.clientHeight),
});

/** Read the figure again if its place has another width. */
function refit() {
  const svg = figurePlace.querySelector("svg");
  if (!svg || svg.viewBox.baseVal.width === figurePlace.clientWidth) return;
  judged = "";
  reload();
}

function seedChoice() {
  return h("label.check", {}, checkbox(board.meanOfSeeds, (yes) => {
    board.meanOfSeeds = yes;
    write({ seeds: yes ? null : "each" });
    drawCurves();
  }), "one curve for all seeds, with its range");
}

const path = `/sweeps/${encodeURIComponent(ref)}`;
const changes = new Changes();
/** What decided the figure when it was fetched. */
let judged = "";

/** Read what has changed of the sweep, or all of it. @returns {Promise<SweepDetail>} */
async function readNews() {
  const changed = changes.take();
  const before = sweep;
  const some = changed?.length ? changed : (before?.trials.slice(0, 1).map(({ run }) => run.id) ?? []);
  if (!changed || !before || !some.length) return readSweep(path, shown);
  return withNews(before, await get(path, { run: some })) ?? readSweep(path, shown);
}

/**
 * Read the sweep and its figure: at first both at once, later the figure only if it has changed.
 *
 * @param {string | null} asked the parameter on the x axis
 * @returns {Promise<[SweepDetail, SweepFigure]>}
 */
async function readBoth(asked) {
  if (!figure) return Promise.all([readNews(), readFigure(asked)]);
  const drawnBefore = figure;
  const found = await readNews();
  return [found, `${asked} ${standing(found)}` === judged ? drawnBefore : await readFigure(asked)];
}

/** Fetch new points with the table, to draw both in one frame: most of its cost does not depend on how much is new. */
const fetchCurves = () => (document.hidden ? null : board.fetch());

let metricsKnown = "";
/** What decided the drawn curves. */
let drawn = "";
async function load() {
  try {
    const asked = parameter;
    const [[found, next]] = await Promise.all([readBoth(asked), fetchCurves()]);
    // The user has chosen another parameter in the meantime: discard this figure.
    if (parameter !== asked) {
      changes.all = true;
      reload();
      return;
    }
    const isNew = next !== figure;
    [sweep, figure] = [found, next];
    parameter = next.parameter;
    judged = `${parameter} ${standing(found)}`;
    drawHead();
    drawParameterChoice();
    drawTrials();
    const seeds = sweep && (sweep.repetitions.length > 0 || sweep.parameters.some(f.isSeed));
    board.meanOfSeeds = Boolean(seeds) && read("seeds") !== "each";
    if (seeds && !seedBar.children.length) fill(seedBar, seedChoice());
    const curves = boardSign(parameter, runsNow());
    if (curves === drawn) board.drawNews();
    else drawCurves();
    drawn = curves;
    if (isNew) drawPlot();
    const isCampaign = isNew && sweep.method === "campaign";
    if (isCampaign) showCampaign(campaign, sweep.id).catch((error) => showFailure(campaign, error));
    await loadMetrics();
    failure.replaceChildren();
  } catch (error) {
    changes.all = true;
    if (!sweep) showFailure(head, error);
    else showFailure(failure, error);
  }
}

/** Take the metrics of all trials that have begun: a single one may log what no other does. */
async function loadMetrics() {
  const begun = (sweep?.trials ?? []).filter(({ run }) => run.step !== null).map(({ run }) => run);
  board.bar.element.hidden = !begun.length;
  figurePlace.style.height = !begun.length && sweep?.state === "finished" ? "60px" : "";
  if (!begun.length) {
    fill(charts, sweep && h("p.empty", {}, withoutCurves(sweep)));
    return;
  }
  const state = begun.map((run) => `${run.id} ${Object.keys(run.latest).length}`).join();
  if (state === metricsKnown) return;
  metricsKnown = state;
  const names = new Set();
  for (let i = 0; i < begun.length; i += ASKED) {
    const found = await get("/values", { run: begun.slice(i, i + ASKED).map((run) => run.id), names: true });
    for (const name of found.metric_names) names.add(name);
  }
  board.setMetrics([...names]);
}

installPage();
const reload = throttled(load, 2000);
const isOurs = (/** @type {string} */ id) => [...(sweep?.trials ?? []), ...(sweep?.repetitions ?? [])]
  .some((trial) => trial.run.id === id);
on("sweep", ({ id }) => {
  if (!sweep || id === sweep.id) reload();
});
on("run", (run) => {
  if (isOurs(run.id)) {
    changes.add(run.id);
    board.expect(run.id);
    reload();
  }
});
on("metrics", ({ run_id: id }) => {
  if (!isOurs(id)) return;
  changes.add(id);
  board.expect(id);
  reload();
});
onCatchUp(async () => {
  changes.all = true;
  await load();
  board.reload();
});
document.addEventListener("lehr:theme", () => {
  drawPlot();
  drawCurves();
  drawTrials();
});
new ResizeObserver(throttled(refit, 200)).observe(figurePlace);
load();
