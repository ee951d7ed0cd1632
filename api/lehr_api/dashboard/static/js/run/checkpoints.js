/** The tab for checkpoints of a run: fork from one, verify, download and delete it. */

import { get, post, remove, url } from "../api.js";
import { dataTable, h } from "../dom.js";
import { acts, inform, openForm } from "../form.js";
import * as f from "../format.js";
import { empty, toast, tryTo } from "../notices.js";
import { listTab } from "./details.js";
import { fork } from "./fork.js";
/** @import { CheckpointView, RunDetail } from "../types.js" */

/** Whether its files or its copy exist. @param {Pick<CheckpointView, "removed_at" | "copy_state">} one */
export const isThere = (one) => one.removed_at === null || one.copy_state === "there";

/** @param {CheckpointView} one */
const address = (one) => `/runs/${one.run_id}/checkpoints/${one.step}`;

/** @param {CheckpointView} one @param {string} [rest] */
const ofAttempt = (one, rest = "") => `${address(one)}${rest}?attempt=${one.attempt}`;

/** @param {CheckpointView} one */
const titleOf = (one) => `step ${f.integer(one.step)}`;

/** @param {CheckpointView} one */
function verify(one) {
  toast(`Reading ${titleOf(one)}: ${f.bytes(one.size_bytes)}.`);
  return tryTo(async () => {
    const verdict = /** @type {import("../types.js").CheckpointVerdict} */ (await post(ofAttempt(one, "/verify")));
    const body = verdict.places.length
      ? verdict.places.map((place) => h("div", {}, h("p.mono", {}, place.place), h(
        place.ok ? "p.good" : "p.bad", {}, place.ok ? "whole" : "damaged", `: ${place.message}`,
      )))
      : h("p.bad", {}, "It is in no location that the server can reach.");
    inform(`${titleOf(one)} is ${verdict.ok ? "whole" : "damaged or incomplete"}`, body);
  });
}

/** @param {RunDetail} run @param {CheckpointView} one */
function download(run, one) {
  return tryTo(async () => {
    const { files } = /** @type {import("../types.js").CheckpointFiles} */ (await get(
      `${address(one)}/files`, { attempt: one.attempt },
    ));
    const link = (/** @type {string} */ name) =>
      h(
        "a",
        { href: url(`${address(one)}/files/${encodeURIComponent(name)}`, { attempt: one.attempt }), download: name },
        name,
      );
    inform(`Files of ${titleOf(one)}`, [
      h("p.hint", {}, "All of them, with their digests checked: ", h(
        "code", {}, `lehr checkpoints download ${run.id} DIR --step ${one.step} --attempt ${one.attempt}`,
      )),
      h(
        "ul.plain",
        { "aria-label": "Files" },
        files.map((file) => h(
          "li", { title: `sha256: ${file.sha256}` }, link(file.name), h("span.dim", {}, ` ${f.bytes(file.size_bytes)}`),
        )),
        h("li", {}, link("manifest.json"), h("span.dim", {}, " lists the files")),
      ),
    ]);
  });
}

/** @param {RunDetail} run @param {CheckpointView} one @param {() => void} again */
function discard(run, one, again) {
  return tryTo(async () => {
    const would = /** @type {import("../types.js").CheckpointDeletion} */ (await get(
      `${address(one)}/deletion`, { attempt: one.attempt },
    ));
    openForm({
      title: `Delete ${titleOf(one)} of ${run.name}?`,
      fields: [
        h("p", {}, h("b", {}, `Frees ${f.bytes(would.bytes)}. `), "This cannot be undone."),
        would.places.map((place) => h("p.mono", {}, place)),
        would.notes.map((note) => h("p.note", {}, note)),
      ],
      yes: "Delete for good",
      danger: true,
      act: async () => {
        const freed = /** @type {import("../types.js").CheckpointDeletion} */ (await remove(ofAttempt(one)));
        toast(`${titleOf(one)} is deleted: ${f.bytes(freed.bytes)} freed.`);
        again();
      },
    });
  });
}

/** @param {RunDetail} run @param {CheckpointView} one @param {() => void} again */
function actions(run, one, again) {
  if (!isThere(one)) return null;
  const button = (
    /** @type {string} */ text, /** @type {string} */ label, /** @type {() => void} */ act, danger = false,
  ) =>
    h(
      danger ? "button.quiet.danger" : "button.quiet",
      acts({ key: text, type: "button", "aria-label": label, onclick: act }), text,
    );
  const step = titleOf(one);
  return [
    one.removed_at === null && button("Fork from here", `Fork from ${step}`, () => fork(run, one.step)),
    button("Verify", `Verify ${step}`, () => verify(one)),
    h(
      "button.quiet",
      { key: "Download", type: "button", "aria-label": `Download ${step}`, onclick: () => download(run, one) },
      "Download",
    ),
    button("Delete", `Delete ${step}`, () => discard(run, one, again), true),
  ];
}

export const openCheckpoints = listTab(["checkpoints"], ([checkpoints], run, again) => {
  if (!checkpoints.length) {
    return empty("No checkpoints yet", h(
      "p", {}, "They are saved every train.checkpoint.every steps, at the end, and on request above.",
    ));
  }
  const row = (/** @type {CheckpointView} */ one) =>
    h(
      one.best ? "tr.best" : "tr",
      { key: `${one.step} ${one.attempt}` },
      h("td.num", {}, f.integer(one.step)),
      h(
        "td", {}, one.latest && h("span.tag", {}, "latest"), one.best && h("span.tag", {}, "best"),
        one.removed_at !== null
          && h("span.tag", { title: "Deleted by the config's rule of how many to keep, or by somebody" }, "removed"),
      ),
      h("td.num", {}, f.number(one.val_loss)),
      h("td.num", {}, f.bytes(one.size_bytes)),
      h("td", {}, one.reason),
      h("td.num", {}, one.attempt),
      h("td", {}, f.time(one.created_at, { seconds: true })),
      h("td.mono", { title: `sha256 of the manifest: ${one.digest}` }, one.path),
      h("td.row-actions", {}, actions(run, one, again)),
    );
  const sorted = [...checkpoints].sort((a, b) => b.step - a.step || b.attempt - a.attempt);
  return dataTable("Checkpoints", [
    ".num step", "", ".num val/loss", ".num size", "saved because", ".num attempt", "saved", "path", ".row-actions",
  ], sorted.map(row));
});
