/** The head of a run's page: state, progress, place in the queue, main figures, actions, alerts. */

import { post } from "../api.js";
import { expectation } from "../cluster.js";
import { fill, h } from "../dom.js";
import { acts } from "../form.js";
import { integer } from "../format.js";
import * as f from "../format.js";
import { confirmed, toast, tryTo } from "../notices.js";
import { ACTIVE, ENDED, progress, runReason, runState, timeHeld } from "../status.js";
import { fork, repeat } from "./fork.js";
import { archive, deleteRun, editTags, unarchive } from "./tags_archive.js";

/** How often a page looks again for what no event announces. */
export const LOOK_MS = 15_000;

/** @param {Pick<import("../types.js").CheckpointView, "removed_at">[]} checkpoints */
export const canForkFrom = (checkpoints) => checkpoints.some((one) => one.removed_at === null);

/**
 * Return whether something of the run may change without an event: why it waits, its first checkpoint, its forecast.
 *
 * @param {import("../types.js").RunView & Pick<Partial<RunDetail>, "forecast">} run
 * @param {boolean} canFork
 */
export const looksAgain = (run, canFork) =>
  run.state === "queued" || (run.step !== null && !ENDED.has(run.state) && (!canFork || Boolean(run.forecast)));

/**
 * @param {import("../types.js").QueueEntry[]} queue
 * @param {string} id of the run
 * @param {number} now in seconds since the epoch
 * @returns {{position: number | null, expected: string | null}}
 */
export function aboutQueue(queue, id, now) {
  const entry = queue.find((one) => one.run_id === id);
  const start = entry && expectation(entry, now);
  return {
    position: entry?.position ?? null,
    expected: start && entry.expected_start !== null ? `expected to start ${start.text}, when ${start.basis}` : null,
  };
}

/** @typedef {import("../types.js").RunDetail} RunDetail */

/**
 * Return what to show of each alert. Warnings of the trainer have no explanation, and an alert that has just been
 * pushed
 * has none until the run is fetched again.
 *
 * @param {RunDetail} run
 * @returns {{title: string, lines: import("../types.js").AlertLine[]}[]}
 */
export function explained(run) {
  return run.alerts.map((text) => {
    const found = run.diagnosis.find((alert) => alert.message === text);
    return found
      ? { title: `${found.code}, since step ${integer(found.step)}`, lines: found.explanation }
      : { title: text, lines: [] };
  });
}

/** @param {RunDetail} run */
export function alerts(run) {
  return explained(run).map(({ title, lines }) =>
    h("div.alert", {}, title, lines.length > 0 && h(
      "dl.facts", {}, lines.map(({ name, text }) => [h("dt", {}, name), h("dd", {}, text)]),
    )),
  );
}

/** @param {RunDetail} run @param {string} verb */
async function order(run, verb) {
  await tryTo(async () => {
    await post(`/runs/${run.id}/${verb}`);
    const done = {
      cancel: "Cancelling", pause: "Pausing", resume: "Queued again", retry: "Queued again",
      checkpoint: "A checkpoint is saved at the next step",
    };
    toast(`${done[/** @type {"cancel"} */ (verb)] ?? verb}.`);
  });
}

/** @param {RunDetail} run */
async function cancel(run) {
  const saved = run.state === "running"
    ? "It is stopped without saving a checkpoint; existing ones stay. To save first, pause it."
    : run.state === "external"
      ? "Lehr did not start it, so its process goes on, unless it asks lehr_log.should_stop()."
      : "It will not start.";
  if (await confirmed({ title: `Cancel ${run.name}?`, body: h("p", {}, saved), yes: "Cancel the run", danger: true })) {
    order(run, "cancel");
  }
}

/** @param {RunDetail} run */
async function pause(run) {
  const saves = run.spec.trainer
    ? "It gets SIGTERM, and frees its GPUs. It resumes from what it has saved."
    : "It saves a checkpoint and frees its GPUs.";
  const body = h("p", {}, `${saves} Resuming puts it back into the queue.`);
  if (await confirmed({ title: `Pause ${run.name}?`, body, yes: "Pause the run" })) order(run, "pause");
}

/** @param {RunDetail} run @param {boolean} canFork */
function actions(run, canFork) {
  const stopping = run.desired !== "run";
  const button = (/** @type {string} */ label, /** @type {() => void} */ act, danger = false) =>
    h(danger ? "button.danger" : "button", acts({ key: label, type: "button", onclick: act }), label);
  /** @type {HTMLElement[]} */
  const shown = [h("a.button", { href: `/api/v1/reports/${run.id}`, target: "_blank", rel: "noopener" }, "Report")];
  if (run.state === "running" && !stopping) {
    shown.push(button("Save checkpoint", () => order(run, "checkpoint")));
    shown.push(button("Pause", () => pause(run)));
  }
  if (canFork) shown.push(button("Fork", () => fork(run)));
  if (!run.archived && !run.forked_from && !run.spec.trainer?.external) shown.push(button("Seeds", () => repeat(run)));
  if (run.state === "paused") shown.push(button("Resume", () => order(run, "resume")));
  if (run.state === "failed" && !run.spec.trainer?.external) shown.push(button("Retry", () => order(run, "retry")));
  if ((ACTIVE.has(run.state) && !stopping) || ["queued", "paused", "external"].includes(run.state)) {
    shown.push(button("Cancel", () => cancel(run), true));
  }
  if (ENDED.has(run.state)) {
    shown.push(run.archived ? button("Unarchive", () => unarchive(run)) : button("Archive", () => archive([run])));
    shown.push(button("Delete", () => deleteRun(run), true));
  }
  return shown;
}

/** @param {string} label @param {string} value @param {string} [note] */
const figure = (label, value, note) =>
  h("div", {}, h("div.k", {}, label), h("div.v", {}, value, note && h("small", {}, ` ${note}`)));

/** How many metrics of its own the head of a program's run shows. */
const OWN = 5;

/** @param {RunDetail} run */
function figures(run) {
  const latest = (/** @type {string} */ name) => run.latest[name];
  const memory = ["memory/peak_bytes", "memory/allocated_bytes", "memory/rss_bytes"].find((name) => latest(name));
  const val = latest("val/loss");
  const program = run.spec.trainer !== null && run.spec.trainer !== undefined;
  const kind = {
    "memory/peak_bytes": "peak", "memory/allocated_bytes": "last", "memory/rss_bytes": "last, of the process",
  }[memory ?? ""];
  /** @type {[metric: string, label: string, value: string, note?: string][]} */
  const usual = [
    ["train/loss", "train/loss", f.number(latest("train/loss")?.value)],
    ["val/loss", "val/loss", f.number(val?.value), val && `at step ${f.integer(val.step)}`],
    ["tokens_per_s", "tokens/s", f.si(latest("tokens_per_s")?.value), "last"],
    ["data/epoch", "epoch", f.number(latest("data/epoch")?.value), "passes over the data"],
    ["mfu", "MFU", f.percent(latest("mfu")?.value)],
    [memory ?? "memory", "memory", f.bytes(memory && latest(memory).value), kind],
    ["train/lr", "lr", f.scientific(latest("train/lr")?.value)],
  ];
  // A program of the user's logs what it likes.
  const known = new Set(usual.map(([name]) => name));
  const own = program ? Object.keys(run.latest).filter((name) => !known.has(name)).slice(0, OWN) : [];
  return h(
    "div.figures",
    {},
    usual.filter(([name]) => latest(name)).map(([, label, value, note]) => figure(label, value, note)),
    own.map((name) => figure(name, f.metric(name, latest(name)?.value))),
  );
}

/** @param {RunDetail} run */
function timing(run) {
  const ended = run.ended_at !== null && [", ended ", f.time(run.ended_at)];
  if (run.started_at === null) return ["submitted ", f.time(run.created_at), ended];
  if (ended) return ["ran ", f.duration(timeHeld(run)), ended];
  return ["started ", f.time(run.started_at)];
}

/** @param {RunDetail} run */
function places(run) {
  if (!run.placement.length) return null;
  /** @type {Map<string, number[]>} */
  const nodes = new Map();
  for (const { node, gpu } of run.placement) nodes.set(node, [...(nodes.get(node) ?? []), gpu]);
  return [...nodes].map(([node, gpus]) => `${node}:${gpus.join(",")}`).join("  ");
}

/**
 * @param {HTMLElement} place
 * @param {RunDetail} run
 * @param {{sweep: string | null, parent: string | null, canFork: boolean, position: number | null, expected: string |
 *   null}} about names of what it belongs to
 */
export function drawHeader(place, run, about) {
  const done = progress(run);
  const reason = runReason(run);
  const failed = run.state === "failed";
  fill(
    place,
    h(
      "div.crumbs",
      {},
      h("a", { href: "/" }, "Runs"),
      run.rollout_id && [" / ", h("a", { href: `/rollouts/${run.rollout_id}` }, "its rollout")],
      run.sweep_id && [" / ", h("a", { href: `/sweeps/${run.sweep_id}` }, about.sweep ?? run.sweep_id)],
      ` / ${run.project}`,
      run.forked_from
        && [", forked from ", h("a", { href: `/runs/${run.forked_from}` }, about.parent ?? run.forked_from)],
    ),
    h(
      "div.head-line", {}, h("h1", {}, run.name), h("span.mono.dim", {}, run.id),
      run.archived && h("span.tag", {}, "archived"),
      run.tags.map((tag) => h("a.tag", { href: `/?filter=tag:${encodeURIComponent(tag)}` }, tag)),
      h(
        "button.quiet", acts({ type: "button", onclick: () => editTags(run) }),
        run.tags.length ? "Edit tags" : "Add tags",
      ),
      h("div.actions", {}, actions(run, about.canFork)),
    ),
    h(
      "div.status-line",
      {},
      runState(run),
      about.position !== null && run.state === "queued" && h(
        "span", {}, about.position === 1 ? "next in the queue" : `number ${f.integer(about.position)} in the queue`,
      ),
      about.expected && run.state === "queued" && h("span", {}, about.expected),
      run.desired !== "run" && ACTIVE.has(run.state) && h("span", {}, `${run.desired} requested`),
      h("span", {}, run.step === null ? "no step yet" : [
        "step ", h("b", {}, f.integer(run.step)), f.ofTotal(run.total_steps),
      ]),
      done !== null && h(
        "span.progress",
        {
          role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100",
          "aria-valuenow": String(Math.round(done * 100)), "aria-label": "Progress",
        },
        h("i", { vars: { "--done": done } }),
      ),
      run.eta_s !== null && h("span", {}, `ETA ${f.duration(run.eta_s)}`),
      h("span", {}, timing(run)),
      run.device && h("span", {}, run.device),
      h("span", {}, places(run)),
      run.attempt > 1 && h("span", {}, `attempt ${run.attempt}`),
      run.cost && h("span.cost", { title: f.COST }, run.cost.text),
    ),
    Object.keys(run.parameters_varied).length > 0 &&
      h("div.status-line", {}, Object.entries(run.parameters_varied).map(
        ([path, value]) => h("span", {}, `${path} `, h("b", {}, f.specCell(value, path)))
      )),
    run.stages.length > 0 && h("div.status-line", {}, run.stages.map(({ name, first_step, last_step }) => h(
      "span", {}, name === run.stage ? h("b", {}, name) : name,
      ` steps ${f.integer(first_step)} to ${f.integer(last_step)}`,
    ))),
    reason && h(
      failed ? "div.failure" : "div.alert", failed ? { role: "alert" } : {}, h("p", {}, reason),
      failed && run.cause && h("p.dim", {}, `cause: ${run.cause.replaceAll("_", " ")}`),
    ),
    run.warnings.map((warning) => h("div.alert", {}, warning)),
    alerts(run),
    Object.keys(run.latest).length > 0 && figures(run),
    run.forecast && !ENDED.has(run.state) && h("p.hint.forecast", {}, `Forecast: ${run.forecast.text}.`),
    run.wandb && h(
      "p.hint", {}, "Weights & Biases: ",
      run.wandb.url ? h("a", { href: run.wandb.url, rel: "noreferrer" }, run.wandb.text) : run.wandb.text,
    ),
  );
}
