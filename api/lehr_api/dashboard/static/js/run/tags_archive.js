/** Tag, archive and delete runs. */

import { get, post, put, remove } from "../api.js";
import { h, input } from "../dom.js";
import { field, openForm } from "../form.js";
import { bytes, integer } from "../format.js";
import { message, toast, toastNext, tryTo } from "../notices.js";
/** @import { RunView } from "../types.js" */

/** @param {string} text */
const words = (text) => [...new Set(text.split(/[\s,]+/).filter(Boolean))];

/** @param {string} title @param {string} before @param {string} yes @param {(tags: string[]) => Promise<any>} act */
function askTags(title, before, yes, act) {
  const tags = input({ value: before, spellcheck: "false", autocomplete: "off" });
  const hint = "words with spaces between them; the filter finds them as tag:word";
  openForm({ title, fields: [field("tags", tags, hint)], yes, act: () => act(words(tags.value)) });
}

/** Change the tags of a run. The server then sends an event. @param {RunView} run */
export const editTags = (run) => askTags(
  `Tags of ${run.name}`, run.tags.join(" "), "Save", (tags) => put(`/runs/${run.id}/tags`, { tags }),
);

/** Add tags to many runs, which keep their own. @param {RunView[]} runs */
export const addTags = (runs) => askTags(
  `Add tags to ${runs.length} ${runs.length === 1 ? "run" : "runs"}`, "", "Add",
  (add) => Promise.all(runs.map((run) => post(`/runs/${run.id}/tags`, { add }))),
);

/** The tag of the run that others of its project are compared with. */
export const REFERENCE = "reference";

/** Make a run the reference of its project, or no longer. The server then sends events. @param {RunView} run */
export const setReference = (run) => tryTo(async () => {
  const is = run.tags.includes(REFERENCE);
  const before = is ? [run] : (await get("/runs", { tag: REFERENCE, project: run.project })).items;
  await Promise.all(before.map((/** @type {RunView} */ { id }) => post(`/runs/${id}/tags`, { remove: [REFERENCE] })));
  if (!is) await post(`/runs/${run.id}/tags`, { add: [REFERENCE] });
});

/** @param {RunView} run */
export const referenceWord = (run) => (run.tags.includes(REFERENCE) ? "No reference" : "★ Reference");

/** @param {RunView[]} runs ended runs @param {() => void} [done] called when they were archived */
export const archive = (runs, done) => openForm({
  title: `Archive ${runs.length === 1 ? runs[0].name : `${runs.length} runs`}?`,
  fields: h(
    "p", {},
    "Hidden from lists; the filter archived:yes shows it. Curves, logs and checkpoints stay; no space is freed.",
  ),
  yes: "Archive",
  act: async () => {
    const results = await Promise.allSettled(runs.map((run) => post(`/runs/${run.id}/archive`)));
    for (const result of results) if (result.status === "rejected") toast(message(result.reason), { bad: true });
    done?.();
  },
});

/** @param {RunView} run */
export const unarchive = (run) => tryTo(() => post(`/runs/${run.id}/unarchive`));

/** Delete a run's files and metrics, after a confirmation that shows the freed space. @param {RunView} run */
export async function deleteRun(run) {
  await tryTo(async () => {
    const would = await get(`/runs/${run.id}/deletion`);
    const parts = [
      `${bytes(would.run_directory_bytes)} of files (${integer(would.checkpoints)} ${would.checkpoints === 1 ? "checkpoint" : "checkpoints"} among them)`,
      `${bytes(would.streams_bytes)} of metrics and logs`,
      would.copies_bytes > 0 && `${bytes(would.copies_bytes)} of copies in storage`,
    ].filter(Boolean);
    openForm({
      title: `Delete ${run.name}?`,
      fields: [
        h("p", {}, h("b", {}, `Frees ${bytes(would.bytes)}: `), `${parts.join(", ")}. This cannot be undone.`),
        would.notes.map((/** @type {string} */ note) => h("p.note", {}, note)),
        h("p.hint", {}, "Its record stays, archived: config, provenance and events."),
      ],
      yes: "Delete for good",
      danger: true,
      act: async () => {
        const freed = await remove(`/runs/${run.id}`);
        toastNext(`${run.name} is deleted: ${bytes(freed.bytes)} freed.`);
        location.assign("/");
      },
    });
  });
}
