/** The tabs for samples and events of a run. */

import { sampleText } from "../charts/tip.js";
import { get } from "../api.js";
import { dataTable, fill, h, throttled } from "../dom.js";
import * as f from "../format.js";
import { empty, showFailure } from "../notices.js";
import { read, write } from "../urlstate.js";
import { MediaBoard } from "./media.js";
/** @import { RunDetail } from "../types.js" */
/** @import { OpenTab } from "./tabs.js" */

const REFRESH_MS = 4000;

/**
 * Make a tab that shows lists of the run, and fetches them again when the run changes.
 *
 * @param {string[]} paths
 * @param {(lists: any[], run: RunDetail, again: () => void) => import("../dom.js").Child} draw `again` fetches the list
 *   again
 * @returns {(place: HTMLElement, run: RunDetail) => OpenTab}
 */
export function listTab(paths, draw) {
  return (place, run) => {
    let before = "";
    const refresh = throttled(async () => {
      try {
        const items = await Promise.all(paths.map((path) => get(`/runs/${run.id}/${path}`)));
        const now = JSON.stringify(items);
        if (now === before) return;
        before = now;
        fill(place, draw(items, run, refresh));
      } catch (error) {
        if (!before) showFailure(place, error);
      }
    }, REFRESH_MS);
    refresh();
    return { run: refresh, metrics: refresh, catchUp: refresh };
  };
}

/** Explain why a run has no sample. @param {RunDetail} run */
export function whyNoSamples(run) {
  const every = run.spec.train?.diagnostics?.sample?.every;
  if (typeof every !== "number") return "This training writes no samples of its text.";
  if (every === 0) return "Its config asks for none: train.diagnostics.sample.every is 0.";
  const due = `It writes one every ${f.integer(every)} steps (train.diagnostics.sample.every)`;
  return run.total_steps && every > run.total_steps
    ? `${due}, but has only ${f.integer(run.total_steps)} steps.`
    : `${due}; none has been reached yet.`;
}

/** @param {import("../types.js").SampleView} sample */
const drawSample = (sample) => h(
  "div.sample",
  {},
  h("div", {}, `step ${f.integer(sample.step)}`, h("div.dim", {}, f.time(sample.at))),
  h("p", {}, sampleText(sample)),
);

/** @param {HTMLElement} place @param {RunDetail} run */
export function openSamples(place, run) {
  const board = new MediaBoard();
  const tab = listTab(["media", "samples"], ([media, samples]) => {
    board.draw([{ id: run.id, head: null, items: media }]);
    if (media.length || samples.length) return [board.element, [...samples].reverse().map(drawSample)];
    return empty("No samples", h("p", {}, whyNoSamples(run)));
  })(place, run);
  // Contents arrive after their records, and are listed only then.
  return { ...tab, log: (/** @type {any} */ { name }) => void (name === "media.bin" && tab.catchUp?.()) };
}

/** @param {import("../types.js").EventView} event */
const eventClass = (event) => (
  event.kind === "warning" || event.data.to === "failed" || event.data.outcome === "failed" ? "tr.event-warning" : "tr"
);

/** @param {import("../types.js").EventView[][]} lists @returns {Element} */
function eventTable([events]) {
  const kinds = [...new Set(events.map((event) => event.kind))].sort();
  const chosen = read("kind") ?? "";
  const shown = chosen ? events.filter((event) => event.kind === chosen) : events;
  const choose = (/** @type {any} */ { currentTarget: changed }) => {
    write({ kind: changed.value });
    fill(changed.closest(".events").parentElement, eventTable([events]));
    changed.focus();
  };
  const select = h(
    "select", { value: kinds.includes(chosen) ? chosen : "", onchange: choose },
    h("option", { value: "" }, `all (${events.length})`),
    kinds.map((kind) => h("option", { value: kind }, kind.replaceAll("_", " "))),
  );
  const rows = [...shown].reverse().map((event) =>
    h(
      eventClass(event),
      {},
      h("td", {}, f.time(event.at, { seconds: true })),
      h("td.dim", {}, event.kind.replaceAll("_", " ")),
      h("td.num", {}, event.attempt || f.NONE),
      h("td.num", {}, f.integer(event.step)),
      h("td.wrap", {}, event.message.replace(" -> ", " → ")),
    )
  );
  return h(
    "div.events", {}, h("div.bar", {}, h("label.field", {}, "show", select)),
    dataTable("Events", [".shrink time", ".shrink event", ".num.shrink attempt", ".num.shrink step", ""], rows),
  );
}

export const openEvents = listTab(["events"], eventTable);
