/** Strips of the cluster page: who held each GPU of a node over time, and when queued runs are expected to start. */

import { slot, stroke } from "./colour.js";
import { h, s } from "./dom.js";

/**
 * @typedef {import("./types.js").NodeHistory} NodeHistory
 *
 * @typedef {object} Past
 * @property {import("./types.js").ClusterHistory} history
 * @property {Map<string, number>} ends when runs are expected to end, by id; in seconds since the epoch
 * @property {number} last the last time that strips show
 */

const HOUR = 3600;
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
/** @type {Map<string, {time: number, gpu: number}>} where the cursor of each strip is */
const places = new Map();
const clock = (/** @type {number} */ at) => CLOCK.format(at * 1000);

/**
 * Say what a GPU does at a time, and by which run.
 *
 * @param {Past} past @param {NodeHistory} node @param {number} gpu @param {number} at
 */
export function wordsAt({ history, ends }, node, gpu, at) {
  const within = (/** @type {{began: number, ended: number | null}} */ span) =>
    span.began <= at && at < (span.ended ?? Infinity);
  const run = node.runs.find((one) => within(one) && one.gpus.includes(gpu));
  const end = run && (run.ended ?? ends.get(run.run_id));
  if (run && at <= Math.max(history.ended, end ?? 0)) {
    const starts = run.trains_at === null || at < run.trains_at ? ", starting" : "";
    const until = !end ? "" : run.ended ? ` to ${clock(end)}` : `, expected to end at ${clock(end)}`;
    const who = `${run.name} (${run.project}, ${run.person})`;
    return { text: `${who}${starts}, from ${clock(run.began)}${until}`, run: run.run_id };
  }
  const seen = node.spans.find(within);
  const why = seen?.kind === "in use" ? history.queue.find(within) : seen;
  const text = `${seen?.kind === "down" ? "down" : "idle"}: ${why?.why || why?.kind || "why is not recorded"}`;
  const unknown = at > history.ended ? "no forecast" : !seen && "not recorded: no server ran, or none knew this node";
  return { text: unknown || text, run: null };
}

/** Return where a time is, in percent. @param {Past} past @param {number} at */
const x = ({ history, last }, at) => 100 * Math.min(1, Math.max(0, (at - history.began) / (last - history.began)));

/** @param {Past} past @param {number} from @param {number} to @param {number[]} place @param {object} props */
function bar(past, from, to, [y, height], props) {
  const [left, right] = [x(past, from), x(past, to)];
  return to > from && s("rect", { x: `${left}%`, width: `${Math.max(0.05, right - left)}%`, y, height, ...props });
}

/** @param {Past} past @param {number} height */
const nowLine = (past, height) => s("rect", { class: "now", x: `${x(past, past.history.ended)}%`, width: 1, height });

/** Draw the hours. @param {Past} past */
export function axis(past) {
  const { history: { began, ended }, last } = past;
  const zone = new Date(last * 1000).getTimezoneOffset() * 60;
  const ticks = [];
  for (let at = Math.ceil((began - zone) / HOUR / 3) * HOUR * 3 + zone; at < last; at += 3 * HOUR) ticks.push(at);
  return s(
    "svg", { class: "strip-axis", "aria-hidden": "true" },
    s("pattern", { id: "hatched", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, s("path", { d: "M0 6L6 0" })),
    ticks.map((at) => s("text", { x: `${x(past, at)}%`, y: 12 }, clock(at))),
    s("text", { x: `${x(past, ended)}%`, y: 26 }, "now"),
  );
}

/** Draw a row for each GPU. @param {Past} past @param {NodeHistory} node @param {(text: string) => void} say */
export function strip(past, node, say) {
  const { history: { began, ended: now }, ends, last } = past;
  if (!node.gpus) return null;
  const row = Math.max(3, Math.min(10, 48 / node.gpus));
  const bars = node.runs.flatMap((run) => {
    const [first, number] = [run.gpus[0], run.gpus.length];
    const parts = run.gpus[number - 1] - first < number ? [[first, number]] : run.gpus.map((gpu) => [gpu, 1]);
    const until = run.ended ?? now;
    const trains = Math.min(run.trains_at ?? until, until);
    const end = run.ended === null ? ends.get(run.run_id) ?? now : now;
    const spans = [[run.began, trains, "expected"], [trains, until, "held"], [now, end, "expected"]];
    return parts.flatMap(([gpu, gpus]) => spans.map(([from, to, kind]) => bar(
      past, Number(from), Number(to), [gpu * row, gpus * row - 0.5],
      { class: kind, fill: stroke(slot(run.run_id)).colour, "data-run": run.run_id },
    )));
  });
  const at = places.get(node.name) ?? { time: now, gpu: 0 };
  places.set(node.name, at);
  const move = (/** @type {number} */ time, /** @type {number} */ gpu) => {
    at.time = Math.min(last, Math.max(began, time));
    at.gpu = Math.min(node.gpus - 1, Math.max(0, gpu));
    const { text, run } = wordsAt(past, node, at.gpu, at.time);
    say(`${node.name}${node.spans.length ? `, GPU ${at.gpu}` : ""}, ${clock(at.time)}: ${text}`);
    return run;
  };
  const point = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    return move(began + share * (last - began), Math.floor((event.clientY - box.top) / row));
  };
  const open = (/** @type {string | null} */ run) => run && location.assign(`/runs/${run}`);
  const walk = (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Enter") open(move(at.time, at.gpu));
    if (!by) return;
    event.preventDefault();
    move(at.time + (by[0] * (last - began)) / 100, at.gpu + by[1]);
  };
  return h(
    "div.strip",
    {
      tabindex: "0", role: "img", "aria-label": `${node.name} over time; arrow keys move, Enter opens the run`,
      onpointermove: point, onkeydown: walk, onfocus: () => move(at.time, at.gpu),
      onclick: (/** @type {MouseEvent} */ event) => open(point(event)),
    },
    s(
      "svg", { height: row * node.gpus },
      node.spans.map((span) => bar(past, span.began, Math.min(span.ended, now), [0, row * node.gpus], {
        class: span.kind === "in use" ? "idle" : "out",
      })),
      bars, nowLine(past, row * node.gpus),
    ),
  );
}

/** Return a strip of expected starts. @param {import("./types.js").QueueEntry[]} queue @param {number} last */
export function queueOf(queue, last) {
  const known = queue.filter(({ expected_start: start }) => start !== null && start < last).slice(0, 12);
  const runs = known.map((one, i) => ({
    ...one, person: one.expected_because, state: "queued", gpus: [i], began: Number(one.expected_start),
    trains_at: null, ended: last,
  }));
  return { name: "queue", gpus: runs.length, spans: [], runs, unused: [] };
}
