/** The page of a sweep: the verdict, the evidence, all trials. */

import { get } from "../api.js";
import { Board } from "../charts/board.js";
import { keyOf } from "../colour.js";
import { Colours } from "../colour_by.js";
import { byId, checkbox, coded, fill, h, mount, s, throttled, uncommanded } from "../dom.js";
import { chip, eye, factList } from "../form.js";
import * as f from "../format.js";
import { noteBox } from "../note.js";
import { showFailure, tryTo } from "../notices.js";
import { installPage } from "../page.js";
import { keep } from "../patch.js";
import { shortName } from "../runs/configs.js";
import { countsLine, showTabState } from "../status.js";
import { on, onCatchUp } from "../stream.js";
import { sweepActions, tooEarly } from "../sweep/actions.js";
import { boardRuns, boardSign, looksOf, varying } from "../sweep/axis.js";
import { showCampaign } from "../sweep/campaign.js";
import { shapeOf, showFigure, showLooks } from "../sweep/figure.js";
import { Changes, PAGE, readSweep, standing, withNews, withoutCurves } from "../sweep/pages.js";
import { Parallel } from "../sweep/parallel.js";
import { trialsTable } from "../sweep/trials.js";
import { read, write } from "../urlstate.js";
/** @import { SweepDetail, SweepFigure } from "../types.js" */

/** The most runs whose metrics one request returns. */
const ASKED = 150;
/** The lowest figure that the server draws, in pixels. */
const LOWEST = 200;
const ref = byId("sweep").dataset.sweep ?? "";
const head = byId("sweep-head");
const note = keep(h("div.note-box"));
const showNote = noteBox(note);
const figurePlace = h("div.figure", { id: "sweep-figure" });
const figureBar = h("div.bar.figure-bar");
const finds = h("div", { id: "findings" });
const failure = h("div");
const campaign = h("section", { id: "campaign" });
const charts = h("div");
const seedBar = h("div.bar");
const parallel = new Parallel(h("div"));
const parallelSection = h("section", { hidden: true }, h("h2", {}, "Parallel coordinates"), parallel.place);
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

const board = new Board(charts, [], { onLine: (run) => light(run, false), several: true });
const body = byId("sweep-body");
// Not before the head, which would push it away; its place must have its width.
body.style.visibility = "hidden";
mount(
  body, campaign, figureBar, h("div.figure-trials", {}, figurePlace, h("div", {}, trials, more), finds), failure,
  h("h2", {}, "Curves"), board.bar.element, seedBar, charts, parallelSection,
);

/**
 * Mark a trial in the figure, in the table, and unless a line was pointed at its lines.
 *
 * @param {string | null} run
 * @param {boolean} [lines]
 */
function light(run, lines = true) {
  for (const row of trials.querySelectorAll("tr")) {
    row.classList.toggle("lit", row.dataset.run === run);
    if (row.dataset.run === run && !row.matches(":hover, :focus-within")) row.scrollIntoView({ block: "nearest" });
  }
  for (const point of /** @type {NodeListOf<SVGElement>} */ (figurePlace.querySelectorAll("[data-run]"))) {
    point.classList.toggle("lit", point.dataset.run === run);
  }
  if (lines) board.light(run);
}
for (const kind of ["pointerover", "focusin"]) {
  trials.addEventListener(kind, ({ target }) => light(
    /** @type {Element} */ (target).closest("tr[data-run]")?.getAttribute("data-run") ?? null,
  ));
}
trials.addEventListener("pointerleave", () => light(null));
const colours = new Colours(() => drawLooks());
const looks = () => looksOf(/** @type {SweepDetail} */ (sweep), parameter, colours.scale);
const runsNow = () => (sweep ? boardRuns(sweep, looks(), hidden) : []);

/** @type {string | null} */
let audited = null;
const audit = () => tryTo(async () => {
  audited = (await get(`${path}/audit`)).text;
  drawHead();
});

/** Signs of findings, by what they are about. */
const SIGNS = /** @type {const} */ ([
  [/fail|diverge/i, "✕", ".bad"], [/try next|edge|beyond/i, "→", ""], [/noise|seeds/i, "±", ""], [/./, "·", ""],
]);
/** The most findings in sight. */
const FINDINGS = 3;

/** Draw what was found besides the verdict, below the figure. @param {SweepDetail} sweep */
function drawFindings({ warnings, notes, held_out_note: sets, method, spec }) {
  const all = [...warnings, ...(figure?.notes ?? notes).filter((one) => one !== sets)];
  const lines = all.map(uncommanded).map((one) => {
    const [, sign, kind] = SIGNS.find(([about]) => about.test(one)) ?? SIGNS[3];
    return h("p.finding", { title: one }, h(`b${kind}`, { "aria-hidden": "true" }, sign), h("span", {}, coded(one)));
  });
  fill(
    finds, lines.slice(0, FINDINGS),
    lines.length > FINDINGS
      && h("details", {}, h("summary.dim", {}, `${lines.length - FINDINGS} more`), lines.slice(FINDINGS)),
    spec.pruning?.name === "forecast" && method !== "campaign" && h("p.note", { id: "audit" }, audited ?? h(
      "button.quiet", { type: "button", onclick: audit }, "What would this rule have stopped wrongly so far?",
    )),
  );
}

/** @param {SweepDetail} sweep */
function facts({ id, project, method, spec, parameters, metric, goal, created_at: created, cost }) {
  const over = spec.campaign ? Object.keys(spec.campaign.decide) : parameters;
  return chip("", `${method} over ${over.map((path) => shortName(path, over)).join(" × ")}`, factList([
    ["method", `${method} over ${over.join(" × ")}`], ["metric", `${metric}, ${goal}d`], ["id", h("span.mono", {}, id)],
    ["project", project], ["submitted", f.time(created)], ["cost", cost && h("span", { title: f.COST }, cost.text)],
  ]));
}

function drawHead() {
  if (!sweep) return;
  body.style.visibility = "";
  showTabState(sweep.name, sweep.state, sweep.steps_total ? sweep.steps_done / sweep.steps_total : null);
  fill(
    head,
    h(
      "div.head-line", {}, h("span.crumbs", {}, h("a", { href: "/sweeps" }, "Sweeps"), ` / ${sweep.project} /`),
      h("h1", {}, sweep.name), countsLine(sweep.counts),
      sweep.trials_remaining > 0 && h("span", {}, `${sweep.trials_remaining} to come`),
      sweep.cost && h("span.dim", { title: sweep.cost.text }, sweep.cost.text.split(/[,;]/)[0]),
      sweepActions(sweep),
    ),
    figure && sweep.method !== "campaign" && h("p.verdict", { id: "verdict" }, figure.verdict),
    h(
      "div.chips", {},
      // If the held-out sets differ, the verdict already states it.
      sweep.held_out_note && sweep.held_out !== "different"
        && chip(".warn", `⚠ ${sweep.held_out_note}`, h("p", {}, sweep.held_out_note)),
      sweep.stopped && chip(".warn", `⚠ No more trials: ${sweep.stopped}`, h("p", {}, sweep.stopped)),
      facts(sweep), sweep.tags.map((tag) => h("a.tag", { href: `/?filter=tag:${encodeURIComponent(tag)}` }, tag)),
      h("span", {}, tooEarly(sweep)), note,
    ),
  );
  showNote(`/sweeps/${sweep.id}`, sweep);
  drawFindings(sweep);
}

function drawCurves() {
  const runs = runsNow();
  board.setRuns(runs);
  board.bar.offer(sweep?.trials.map((trial) => trial.run) ?? []);
  fill(seedBar, hasSeeds() && seedChoice(), sweep?.trials.some(({ run }) => run.step !== null) && drawKey());
}

/** Draw all that has colours. */
function drawLooks() {
  drawParameterChoice();
  drawPlot();
  drawCurves();
  drawTrials();
}

/** What colours and shapes show. */
function drawKey() {
  const { scale, shapes } = looks();
  const mark = (/** @type {number} */ shape) => s("svg", { width: 14, height: 14 }, shapeOf(shape, 7, 7));
  const names = shapes.map((text, i) => h("span", {}, mark(i), String(JSON.parse(text))));
  return [!colours.by && keyOf(scale), h("span.scale", {}, names)];
}

function drawTrials() {
  if (!sweep || sweep.method === "campaign") return; // Its trials differ in size: they are shown by rung.
  const { of } = looks();
  const mark = (/** @type {SweepDetail["trials"][number]} */ trial) => s(
    "svg", { width: 14, height: 14, color: of(trial).colour }, shapeOf(of(trial).shape, 7, 7),
  );
  fill(trials, trialsTable(sweep, (trial) => eye(hidden, trial.run.id, trial.run.name, mark(trial), () => {
    drawCurves();
    drawTrials();
  })));
  const left = sweep.trials_total - sweep.trials.length;
  more.hidden = left <= 0;
  fill(more, h("button", { type: "button", onclick: () => {
    shown += PAGE;
    changes.all = true;
    load();
  } }, `Show ${Math.min(PAGE, left)} more`), h(
    "span.dim", {}, `${sweep.trials.length} of ${sweep.trials_total} trials are shown, the best among them.`,
  ));
  parallelSection.hidden = varying(sweep).length < 2;
  if (!parallelSection.hidden) parallel.draw(sweep);
}

/** How much each parameter affects the metric stands beside its name. */
const IMPORTANCE = "How much the parameter affects the metric, where that is known. PED-ANOVA compares its values among the better half of the trials with those among all.";

function drawParameterChoice() {
  figurePlace.hidden = sweep?.method === "campaign";
  campaign.classList.toggle("awaited", figurePlace.hidden);
  figureBar.hidden = !sweep || figurePlace.hidden;
  if (!sweep || figureBar.hidden) return;
  const { parameters } = sweep;
  const choose = (/** @type {string} */ path) => {
    parameter = path;
    write({ parameter });
    load();
  };
  fill(figureBar, parameters.length > 1 && h("span.field", {}, "x", h("span.segments", {}, parameters.map((path) => h(
    "button", {
      key: path, type: "button", "aria-pressed": String(path === parameter), title: `${path}. ${IMPORTANCE}`,
      onclick: () => choose(path),
    },
    shortName(path, parameters),
    figure?.importance[path] !== undefined && h("span.dim", {}, ` ${f.percent(figure.importance[path])}`),
  )))), colours.place, drawKey());
}

function drawPlot() {
  if (!figure || !sweep) return;
  showFigure(figurePlace, figure.svg, light);
  figurePlace.style.height = `${figurePlace.querySelector("svg")?.viewBox.baseVal.height}px`;
  const { of } = looks();
  showLooks(figurePlace, new Map([...sweep.trials, ...sweep.repetitions].map((trial) => [trial.run.id, of(trial)])));
}

/** @param {string | null} asked the parameter on the x axis @returns {Promise<SweepFigure>} as large as its place */
const readFigure = (asked) => {
  // A low one has made its place low.
  figurePlace.style.height = "";
  const height = Math.max(LOWEST, figurePlace.clientHeight);
  figurePlace.style.height = `${figurePlace.querySelector("svg")?.viewBox.baseVal.height ?? height}px`;
  return get(`${path}/figure`, { parameter: asked, width: figurePlace.clientWidth || null, height });
};

/** Read the figure again if its place has another width. */
function refit() {
  const svg = figurePlace.querySelector("svg");
  if (!svg || svg.viewBox.baseVal.width === figurePlace.clientWidth) return;
  judged = "";
  reload();
}

const hasSeeds = () => sweep !== null && (sweep.repetitions.length > 0 || sweep.parameters.some(f.isSeed));

function seedChoice() {
  return h("label.check", {}, checkbox(board.means !== null, (yes) => {
    board.means = yes ? "seeds" : null;
    write({ seeds: yes ? null : "each" });
    drawCurves();
  }), "one curve for all seeds, their mean");
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
    await colours.show([...sweep.trials, ...sweep.repetitions].map(({ run }) => run), `by ${looks().title}`);
    drawHead();
    drawParameterChoice();
    drawTrials();
    board.means = hasSeeds() && read("seeds") !== "each" ? "seeds" : null;
    const curves = boardSign(runsNow());
    if (curves === drawn) board.drawNews();
    else drawCurves();
    drawn = curves;
    if (isNew) drawPlot();
    if (isNew && sweep.method === "campaign") drawCampaign();
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
  if (!begun.length) {
    fill(charts, sweep && h("p.empty", {}, withoutCurves(sweep)));
    return;
  }
  const state = begun.map((run) => `${run.id} ${Object.keys(run.latest).length}`).join();
  if (state === metricsKnown) return;
  metricsKnown = state;
  const names = new Set();
  for (let i = 0; i < begun.length; i += ASKED) {
    const run = begun.slice(i, i + ASKED).map(({ id }) => id);
    const found = await get("/values", { run, names: true, configs: false });
    for (const name of found.metric_names) names.add(name);
  }
  board.setMetrics([...names]);
}

installPage();
// Its curves, which are looked at, come every 2 s: 60 requests a minute are enough in all.
const reload = throttled(load, 3000);
const drawCampaign = throttled(
  () => showCampaign(campaign, trials, sweep?.id ?? "").catch((error) => showFailure(campaign, error)), 0,
);
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
new ResizeObserver(throttled(refit, 200)).observe(figurePlace);
load();
