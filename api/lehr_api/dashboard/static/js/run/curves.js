/** The curves of a run, with the tail of its log below. */

import { get } from "../api.js";
import { Board } from "../charts/board.js";
import { boardRun } from "../charts/lines.js";
import { ABSENT, slot, stroke } from "../colour.js";
import { fill, h, mount, throttled } from "../dom.js";
import { empty } from "../notices.js";
import { ENDED } from "../status.js";
import { LogView } from "./logs.js";
import { marksOf } from "./marks.js";
import { REFERENCE } from "./tags_archive.js";

/** @typedef {import("../types.js").RunDetail} RunDetail @typedef {import("./tabs.js").OpenTab} OpenTab */

const LOOK_MS = 20_000;

/** @param {HTMLElement} place @param {RunDetail} run @param {(step: number) => void} onLog @returns {OpenTab} */
export function openCurves(place, run, onLog) {
  place.classList.add("run-curves");
  const charts = h("div");
  const tailPlace = h("div");
  const board = new Board(charts, [{
    id: run.id, label: run.name, parent: run.forked_from, stroke: stroke(slot(run.id)),
  }], { onLog });
  board.bar.offer([run]);
  // Not before the charts, which would push it away.
  const tail = h("section", { hidden: true }, h("h2", {}, "Log tail"), tailPlace);
  mount(place, h("h2.unseen", {}, "Curves"), board.bar.element, charts, tail);
  const log = new LogView(tailPlace, run, { tail: true });
  let attempt = run.attempt;
  let current = run;

  const metrics = async () => {
    const infos = /** @type {import("../types.js").MetricInfo[]} */ (await get(`/runs/${run.id}/metrics`));
    board.bar.element.hidden = !infos.length;
    if (!infos.length) {
      fill(
        charts,
        ENDED.has(current.state)
          ? empty("No metrics", h("p", {}, current.attempt ? "It ended before its first step." : "It never started."))
          : empty("No metrics yet", h("p", {}, "Curves appear with the first step.")),
      );
      return;
    }
    board.setMetrics(infos.map((info) => info.name));
  };
  const marks = async () => {
    const [events, alerts] = await Promise.all([get(`/runs/${run.id}/events`), get(`/runs/${run.id}/alerts`)]);
    board.setMarks({ ...marksOf(events, alerts, current.stages), forecast: current.forecast });
  };
  // Names of metrics and marks change rarely. Fetch them when an event of the run
  // hints at a change, and from time to time for changes without an event (a checkpoint, a new metric).
  const look = throttled(async () => {
    looked = Date.now();
    await metrics().catch((error) => board.failed(error));
    tail.hidden = current.attempt === 0;
    await marks().catch(() => undefined);
  }, 1500);
  let looked = 0;
  let sign = "";
  /** @param {string} next */
  const lookIfNew = (next) => {
    if (next !== sign || Date.now() - looked > LOOK_MS) look();
    sign = next;
  };
  look();
  const { project, tags } = run;
  if (!tags.includes(REFERENCE)) get("/runs", { project, tag: REFERENCE, limit: 1 }).then(({ items: [star] }) => {
    if (!star) return;
    const grey = { colour: ABSENT, dash: /** @type {const} */ ("solid") };
    board.faint = [boardRun(star, { label: `★ ${star.name}`, faint: true, stroke: grey })];
    board.tick(true);
  }, () => undefined);

  return {
    run(next) {
      current = next;
      if (next.attempt !== attempt) {
        // A resume goes back in steps, so fetched points may be superseded.
        attempt = next.attempt;
        board.reload();
      }
      log.run(next);
      board.tick();
      const { state, alerts, forecast } = next;
      lookIfNew(`${state} ${next.attempt} ${alerts.length} ${forecast?.value} ${Object.keys(next.latest).join()}`);
    },
    metrics: () => board.tick(),
    at: (step) => board.showStep(step),
    log: (change) => log.grew(change),
    catchUp() {
      board.reload();
      look();
      log.refresh();
    },
    close() {
      board.destroy();
    },
  };
}
