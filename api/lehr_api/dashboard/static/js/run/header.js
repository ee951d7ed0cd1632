/** The head of a run's page: state, progress, place in the queue, main figures, actions, alerts. */

import { sparkline } from "../charts/drawing.js";
import { expectation } from "../cluster.js";
import { fill, h } from "../dom.js";
import { acts, chip, closing, factList, openForm, order } from "../form.js";
import * as f from "../format.js";
import { tryTo } from "../notices.js";
import { ACTIVE, ENDED, progress, runReason, runState, timeHeld } from "../status.js";
import { fork, repeat } from "./fork.js";
import { archive, deleteRun, editTags, referenceWord, setReference, unarchive } from "./tags_archive.js";
/** @import { EventView, RunDetail, Series } from "../types.js" */

/** How often a page looks again for what no event announces. */
export const LOOK_MS = 15_000;

/** @param {Pick<import("../types.js").CheckpointView, "removed_at">[]} checkpoints */
export const canForkFrom = (checkpoints) => checkpoints.some((one) => one.removed_at === null);

/**
 * Return whether something of the run may change without an event: why it waits, its checkpoints, forecast and curves.
 *
 * @param {import("../types.js").RunView} run
 */
export const looksAgain = (run) => run.state === "queued" || (run.step !== null && !ENDED.has(run.state));

/** @param {import("../types.js").QueueEntry[]} queue @param {string} id @param {number} now since the epoch, in s */
export function aboutQueue(queue, id, now) {
  const entry = queue.find((one) => one.run_id === id);
  const start = entry && expectation(entry, now);
  return {
    position: entry?.position ?? null,
    expected: start && entry.expected_start !== null ? `expected to start ${start.text}, when ${start.basis}` : null,
  };
}

/**
 * Return what to show of each alert. Warnings of the trainer have no explanation, as an alert that was just pushed.
 *
 * @param {RunDetail} run
 * @param {EventView[]} warnings of its trainer
 * @returns {{title: string, step: number | null, certain: boolean, lines: import("../types.js").AlertLine[]}[]}
 */
export function explained(run, warnings) {
  return run.alerts.map((text) => {
    const found = run.diagnosis.find((alert) => alert.message === text);
    if (!found) {
      const named = / at step ([\d,]+)/.exec(text)?.[1].replaceAll(",", "");
      const step = warnings.findLast(({ message }) => message === text)?.step ?? (named ? Number(named) : null);
      return { title: text, step, certain: false, lines: [] };
    }
    const { code, step, advice, sure, explanation } = found;
    const title = `${code.replaceAll("_", " ")} since ${f.integer(step)} · ${advice}`;
    return { title, step, certain: sure === "certain", lines: explanation };
  });
}

/** Return the error alone of why a program failed, without how its process ended. @param {string} reason */
export const errorOf = (reason) => reason.replace(/ \([^()]* exited with code \d+; [^()]*\)$/, "");

/** @typedef {{curve: (step: number) => void, log: (where: number | string) => void}} Go where alerts lead */

/** @param {RunDetail} run @param {EventView[]} warnings @param {Go} go */
function alertChips(run, warnings, go) {
  const button = (/** @type {string} */ label, /** @type {() => void} */ act) =>
    h("button", { key: label, type: "button", onclick: closing(act) }, label);
  const ways = (/** @type {number | null} */ step) => step !== null && h(
    "div", {}, button("Show on curve", () => go.curve(step)), " ", button("Show in log", () => go.log(step)),
  );
  const reason = run.state === "failed" ? runReason(run) : null;
  const all = explained(run, warnings);
  // A trainer that stops because of what it saw has warned of it: "loss became NaN at step 40".
  const same = all.filter(({ title, lines }) => reason && !lines.length && title.startsWith(reason));
  return [
    reason && chip(
      ".bad", `✕ ${errorOf(reason)}`, h("p", {}, reason),
      run.cause && h("p.dim", {}, `cause: ${run.cause.replaceAll("_", " ")}`),
      same.length ? ways(same[0].step) : button("Log at this line", () => go.log(errorOf(reason))),
    ),
    all.filter((alert) => !same.includes(alert)).map(({ title, step, certain, lines }) => chip(
      certain ? ".bad" : ".warn", `⚠ ${title}`,
      lines.length ? factList(lines.map(({ name, text }) => [name, text])) : h("p", {}, title), ways(step),
    )),
    run.warnings.map((warning) => chip(".warn", `⚠ ${warning}`, h("p", {}, warning))),
  ];
}

/** @param {RunDetail} run @param {string} verb @param {string} done */
const change = (run, verb, done) => order(`/runs/${run.id}/${verb}`, `${done}.`);

/** @param {RunDetail} run @param {string} verb @param {string} done */
const now = (run, verb, done) => tryTo(() => change(run, verb, done));

/** @param {RunDetail} run */
function cancel(run) {
  const saved = run.state === "running"
    ? "It is stopped without saving a checkpoint; existing ones stay. To save first, pause it."
    : run.state === "external"
      ? "Lehr did not start it, so its process goes on, unless it asks lehr_log.should_stop()."
      : "It will not start.";
  const act = () => change(run, "cancel", "Cancelling");
  openForm({ title: `Cancel ${run.name}?`, fields: h("p", {}, saved), yes: "Cancel the run", danger: true, act });
}

/** @param {RunDetail} run */
function pause(run) {
  const saves = run.spec.trainer
    ? "It gets SIGTERM, and frees its GPUs. It resumes from what it has saved."
    : "It saves a checkpoint and frees its GPUs.";
  const fields = h("p", {}, `${saves} Resuming puts it back into the queue.`);
  const act = () => change(run, "pause", "Pausing");
  openForm({ title: `Pause ${run.name}?`, fields, yes: "Pause the run", act });
}

/** @param {RunDetail} run @param {boolean} canFork */
function actions(run, canFork) {
  const stopping = run.desired !== "run";
  const ended = ENDED.has(run.state);
  const own = !run.spec.trainer?.external;
  const live = run.state === "running" && !stopping;
  const stops = (ACTIVE.has(run.state) && !stopping) || ["queued", "paused", "external"].includes(run.state);
  const button = (/** @type {string} */ label, /** @type {(event: any) => void} */ act, danger = false) =>
    h(danger ? "button.danger" : "button", acts({ key: label, type: "button", onclick: act }), label);
  const item = (/** @type {string} */ label, /** @type {() => void} */ act, danger = false) =>
    button(label, closing(act), danger);
  const main = (/** @type {typeof item} */ made) => [
    run.state === "paused" && made("Resume", () => now(run, "resume", "Queued again")),
    run.state === "failed" && own && made("Retry", () => now(run, "retry", "Queued again")),
    live && made("Pause", () => pause(run)),
    canFork && made("Fork", () => fork(run)),
    !run.archived && !run.forked_from && own && made("Seeds", () => repeat(run)),
  ];
  return h(
    "div.actions", {}, main(button), h(
      "details.menu", {}, h("summary", { "aria-label": "More actions" }, "⋯"), h(
        // On a phone the buttons beside the menu have no room.
        "div.menu-list", {}, h("div.phone", {}, main(item)),
        h("a.button", { href: `/api/v1/reports/${run.id}`, target: "_blank", rel: "noopener" }, "Report"),
        live && item("Save checkpoint", () => now(run, "checkpoint", "A checkpoint is saved at the next step")),
        item(referenceWord(run), () => setReference(run)),
        item(run.tags.length ? "Edit tags" : "Add tags", () => editTags(run)),
        ended && (run.archived ? item("Unarchive", () => unarchive(run)) : item("Archive", () => archive([run]))),
        stops && item("Cancel", () => cancel(run), true), ended && item("Delete", () => deleteRun(run), true),
      ),
    ),
  );
}

/** @type {Record<string, string>} by metric, its name in the head, where that differs */
const LABELS = {
  tokens_per_s: "throughput", "data/epoch": "epoch", mfu: "MFU", "train/lr": "lr", "memory/peak_bytes": "memory, peak",
  "memory/allocated_bytes": "memory, last", "memory/rss_bytes": "memory of the process",
};
const MEMORY = Object.keys(LABELS).slice(-3);
const USUAL = ["train/loss", "val/loss", "tokens_per_s", "data/epoch", "mfu", "train/lr"];

/** Return the metrics that the head has a tile of: those with a value. @param {RunDetail} run */
export function tileNames(run) {
  const usual = [...USUAL, MEMORY.find((name) => run.latest[name]) ?? ""].filter((name) => run.latest[name]);
  // A program of the user's logs what it likes, also a usual metric by another name.
  const textOf = (/** @type {string} */ name) => JSON.stringify(run.latest[name]);
  const isOwn = (/** @type {string} */ name) => !/^system\//.test(name) && !usual.map(textOf).includes(textOf(name));
  return [...usual, ...(run.spec.trainer ? Object.keys(run.latest).filter(isOwn) : [])];
}

/** Return the best value of an evaluated metric, with its step where each point is known. @param {Series} series */
export function bestOf({ name, goal, total_points: total, step, y, low, high }) {
  if (!goal || /^train\/|_s$|^mfu$/.test(name)) return null;
  const sign = goal === "maximize" ? -1 : 1;
  const values = ((goal === "maximize" ? high : low) ?? y).map((value) => f.fromWire(value) ?? NaN);
  const best = values.filter(Number.isFinite).reduce((a, b) => (sign * b < sign * a ? b : a), sign * Infinity);
  if (!Number.isFinite(best)) return null;
  return `best ${f.metric(name, best)}${total === step.length ? ` @ ${f.integer(step[values.indexOf(best)])}` : ""}`;
}

/** @param {RunDetail} run @param {About} about */
function tiles(run, { series, versus }) {
  /** @param {string} label @param {string} note @param {string} title @param {...import("../dom.js").Child} value */
  const tile = (label, note, title, ...value) =>
    h("div.tile", { key: label, title }, h("div.k", {}, label, h("span", {}, ` ${note}`)), h("div.v", {}, value));
  const { forecast } = run;
  return h("div.tiles", {}, tileNames(run).map((name) => {
    const drawn = series.find((one) => one.name === name);
    const { value, step } = run.latest[name];
    return tile(
      LABELS[name] ?? name, (drawn && bestOf(drawn)) ?? "", `at step ${f.integer(step)}`, f.metric(name, value),
      drawn && sparkline(drawn.y, `${name} so far`),
    );
  }), versus !== null && tile(
    "val/loss vs ★", "at equal tokens", "less that of the reference run of the project",
    f.signed(versus),
  ), forecast?.likely && !ENDED.has(run.state) && tile(
    `${forecast.metric} forecast`, `68 %: ${forecast.likely.map((end) => f.number(end)).join(" to ")}`,
    `${forecast.text}.`, f.number(forecast.value),
  ));
}

/** @param {RunDetail} run */
function timing(run) {
  const ended = run.ended_at !== null && [", ended ", f.time(run.ended_at)];
  if (run.started_at === null) return ["submitted ", f.time(run.created_at), ended];
  if (ended) return ["ran ", f.duration(timeHeld(run)), ended];
  return ["started ", f.time(run.started_at)];
}

/** @param {Pick<RunDetail, "placement">} placed a run or an attempt */
export const places = ({ placement }) => [...new Set(placement.map(({ node }) => node))]
  .map((name) => `${name}:${placement.filter(({ node }) => node === name).map(({ gpu }) => gpu)}`).join("  ");

/** @param {RunDetail} run */
const facts = (run) => chip("", timing(run), factList([
  ["id", h("code", {}, run.id)], ["project", run.project], ["submitted", f.time(run.created_at)],
  ["device", run.device], ["placed on", places(run)], ["attempt", run.attempt > 1 && run.attempt],
  ["cost", run.cost && h("span", { title: f.COST }, run.cost.text)],
  ["stages", run.stages.length > 0 && run.stages.map(({ name, first_step, last_step }) => h(
    "div", {}, name === run.stage ? h("b", {}, name) : name,
    ` steps ${f.integer(first_step)} to ${f.integer(last_step)}`,
  ))],
  ["W&B", run.wandb && (
    run.wandb.url ? h("a", { href: run.wandb.url, rel: "noreferrer" }, run.wandb.text) : run.wandb.text
  )],
]));

/**
 * @typedef {{sweep: string | null, parent: string | null, canFork: boolean, position: number | null,
 *   expected: string | null, warnings: EventView[], series: Series[], versus: number | null}} About names of what the
 *   run belongs to, place in the queue, warnings of the trainer, curves of the tiles, difference to the reference
 */

/** @param {HTMLElement} place @param {RunDetail} run @param {About} about @param {Go} go @param {HTMLElement} note */
export function drawHeader(place, run, about, go, note) {
  const done = progress(run);
  const reason = run.state === "failed" ? null : runReason(run);
  const waits = run.state === "queued";
  const link = (/** @type {string} */ href, /** @type {string} */ text) => h("a", { href }, text);
  fill(
    place,
    h(
      "div.head-line", {}, h(
        "span.crumbs", {}, link("/", "Runs"),
        run.rollout_id && [" / ", link(`/rollouts/${run.rollout_id}`, "its rollout")],
        run.sweep_id && [" / ", link(`/sweeps/${run.sweep_id}`, about.sweep ?? run.sweep_id)],
        run.forked_from && [" / forked from ", link(`/runs/${run.forked_from}`, about.parent ?? run.forked_from)], " /",
      ),
      h("h1", {}, run.name), run.archived && h("span.tag", {}, "archived"), runState(run),
      run.desired !== "run" && ACTIVE.has(run.state) && h("span", {}, `${run.desired} requested`),
      h("span", {}, run.step === null ? `no step${ENDED.has(run.state) ? "" : " yet"}` : [
        "step ", h("b", {}, f.integer(run.step)), f.ofTotal(run.total_steps),
      ]),
      done !== null && h("span.progress", {
        role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100",
        "aria-valuenow": String(Math.round(done * 100)), "aria-label": "Progress",
      }, h("i", { vars: { "--done": done } })),
      run.eta_s !== null && h("span", {}, `ETA ${f.duration(run.eta_s)}`),
      actions(run, about.canFork),
    ),
    h(
      "div.chips", {}, alertChips(run, about.warnings, go),
      waits && about.position !== null && h(
        "span", {}, about.position === 1 ? "next in the queue" : `number ${f.integer(about.position)} in the queue`,
      ),
      waits && about.expected && h("span", {}, about.expected),
      reason && h("span.warn", {}, reason),
      Object.entries(run.parameters_varied).map(
        ([path, value]) => h("span", {}, `${path.replace(/^train\./, "")} `, h("b", {}, f.specCell(value, path)))
      ),
      run.tags.map((tag) => h("a.tag", { href: `/?filter=tag:${encodeURIComponent(tag)}` }, tag)),
      facts(run), note,
    ),
    tileNames(run).length > 0 && tiles(run, about),
  );
}
