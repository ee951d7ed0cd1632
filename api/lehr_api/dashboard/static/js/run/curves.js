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
/** @import { RunDetail } from "../types.js" */
/** @import { OpenTab } from "./tabs.js" */

const LOOK_MS = 20_000;

/**
 * Make a tab with the charts of one run. What rarely changes is looked for when an event of the run hints at a
 * change, and from time to time for changes without an event (a checkpoint, a new metric).
 *
 * @param {HTMLElement} charts
 * @param {RunDetail} run
 * @param {ConstructorParameters<typeof Board>[2]} options
 * @param {{look: (board: Board, run: RunDetail) => Promise<unknown>, sign: (run: RunDetail) => string,
 *   pauseMs: number}} rare `sign`: another one hints at a change
 */
export function runBoard(charts, run, options, { look, sign, pauseMs }) {
  const drawn = { id: run.id, label: run.name, parent: run.forked_from, stroke: stroke(slot(run.id)) };
  const board = new Board(charts, [drawn], options);
  board.bar.offer([run]);
  let [current, signed, looked] = [run, sign(run), 0];
  const again = throttled(async () => {
    looked = Date.now();
    await look(board, current).catch((error) => board.failed(error));
  }, pauseMs);
  again();
  return {
    board,
    run(/** @type {RunDetail} */ next) {
      // A resume goes back in steps, so fetched points may be superseded.
      if (next.attempt !== current.attempt) board.reload();
      current = next;
      board.tick();
      if (sign(next) !== signed || Date.now() - looked > LOOK_MS) again();
      signed = sign(next);
    },
    metrics: () => board.tick(),
    catchUp() {
      board.reload();
      again();
    },
    close: () => board.destroy(),
  };
}

/** @param {HTMLElement} place @param {RunDetail} run @param {(step: number) => void} onLog @returns {OpenTab} */
export function openCurves(place, run, onLog) {
  place.classList.add("run-curves");
  const charts = h("div");
  const tailPlace = h("div");
  const log = new LogView(tailPlace, run, { tail: true });
  // Not before the charts, which would push it away.
  const tail = h("section", { hidden: true }, h("h2", {}, "Log tail"), tailPlace);
  const marks = async (/** @type {Board} */ board, /** @type {RunDetail} */ current) => {
    const [events, alerts] = await Promise.all([get(`/runs/${run.id}/events`), get(`/runs/${run.id}/alerts`)]);
    board.setMarks({ ...marksOf(events, alerts, current.stages), forecast: current.forecast });
  };
  const tab = runBoard(charts, run, { onLog }, {
    pauseMs: 1500,
    sign: ({ state, attempt, alerts, forecast, latest }) => (
      `${state} ${attempt} ${alerts.length} ${forecast?.value} ${Object.keys(latest).join()}`
    ),
    async look(board, current) {
      try {
        const infos = /** @type {import("../types.js").MetricInfo[]} */ (await get(`/runs/${run.id}/metrics`));
        board.bar.element.hidden = !infos.length;
        // The recorder of a script writes its loss as train/loss too.
        const train = infos.find(({ name }) => name === "train/loss");
        const own = infos.filter(
          ({ name, last, points }) => name !== "loss" || last !== train?.last || points !== train.points
        );
        if (infos.length) board.setMetrics(own.map(({ name }) => name));
        else fill(charts, ENDED.has(current.state)
          ? empty("No metrics", h("p", {}, current.attempt ? "It ended before its first step." : "It never started."))
          : empty("No metrics yet", h("p", {}, "Curves appear with the first step.")));
      } finally {
        tail.hidden = current.attempt === 0;
      }
      await marks(board, current).catch(() => undefined);
    },
  });
  const { board } = tab;
  mount(place, h("h2.unseen", {}, "Curves"), board.bar.element, charts, tail);
  const { project, tags } = run;
  if (!tags.includes(REFERENCE)) get("/runs", { project, tag: REFERENCE, limit: 1 }).then(({ items: [star] }) => {
    if (!star) return;
    const grey = { colour: ABSENT, dash: /** @type {const} */ ("solid") };
    board.faint = [boardRun(star, { label: `★ ${star.name}`, faint: true, stroke: grey })];
    board.tick(true);
  }, () => undefined);

  return {
    ...tab,
    run(next) {
      log.run(next);
      tab.run(next);
    },
    at: (step) => board.showStep(step),
    log: (change) => log.grew(change),
    catchUp() {
      tab.catchUp();
      log.refresh();
    },
  };
}
