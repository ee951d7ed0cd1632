/** The code that a run trains with: its capsule, the commands that read it, and what a fork changed. */

import { get } from "../api.js";
import { codeDiff } from "../code_diff.js";
import { fill, h } from "../dom.js";
import * as f from "../format.js";
import { message } from "../notices.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */
/** @typedef {import("../types.js").CapsuleView} CapsuleView */

const PROJECT = "project/";
const SHOWN = 12;

/**
 * Count the files of a capsule by where they come from.
 *
 * @param {CapsuleView} capsule
 */
export function contents(capsule) {
  const own = capsule.files.filter((file) => file.name.startsWith(PROJECT)).length;
  const trainer = capsule.files.length - own;
  if (capsule.installed) return `${f.integer(trainer)} files: the trainer that is installed with the server`;
  return `${f.integer(capsule.files.length)} files: ${f.integer(trainer)} of the trainer, ${f.integer(own)} of the project`;
}

/**
 * Return the commands that compare the run's code, and write it into a folder.
 *
 * @param {Pick<RunDetail, "id" | "forked_from">} run
 */
export function commands(run) {
  return [`lehr code diff ${run.forked_from ?? "OTHER-RUN"} ${run.id}`, `lehr code checkout ${run.id} DIR`];
}

/** @param {RunDetail} run */
export function codePanel(run) {
  const digest = run.spec.code?.digest;
  if (!digest) return h("p.hint", {}, "This run has no capsule: an older Lehr recorded it.");
  const place = h("div.run-code");
  const show = async () => {
    try {
      const capsule = /** @type {CapsuleView} */ (await get(`/code/${digest}`));
      fill(
        place,
        h(
          "dl.facts",
          { "aria-label": "Code" },
          h("dt", {}, "capsule"),
          h("dd.mono", { title: digest }, digest.slice(0, SHOWN)),
          h("dt", {}, "contents"),
          h("dd", {}, contents(capsule)),
          h("dt", {}, "size"),
          h("dd", {}, f.bytes(capsule.bytes)),
          h("dt", {}, "commands"),
          h("dd.mono", {}, commands(run).map((line) => h("div", {}, h("code", {}, line)))),
        ),
        run.forked_from && h("div.code-differences", {}, codeDiff(
          run.forked_from, digest, `Differences from ${run.forked_from}, from which it was forked`,
        )),
      );
    } catch (error) {
      fill(place, h("p.hint", {}, `Capsule ${digest.slice(0, SHOWN)} cannot be shown: ${message(error)}`));
    }
  };
  show();
  return place;
}
