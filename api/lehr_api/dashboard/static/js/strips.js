/** Strips of the cluster page: who held each GPU of a node over time, and when queued runs are expected to start. */

import { slot, stroke } from "./colour.js";
import { h, s } from "./dom.js";
import { clock, hoursIn } from "./format.js";
/** @import { NodeHistory } from "./types.js" */

/**
 * @typedef {object} Past
 * @property {import("./types.js").ClusterHistory} history
 * @property {Map<string, number>} ends when runs are expected to end, by id; in seconds since the epoch
 * @property {number} last the last time that strips show
 */

/** @type {Map<string, {time: number, gpu: number}>} where the cursor of each strip is */
const places = new Map();

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
    const low = node.unused.find((one) => one.gpu === gpu && within(one)) ? "; under 5 % used" : "";
    const who = `${run.name} (${run.project}, ${run.person})`;
    return { text: `${who}${starts}, from ${clock(run.began)}${until}${low}`, run: run.run_id };
  }
  const seen = node.spans.find(within);
  const why = seen?.kind === "in use" ? history.queue.find(within) : seen;
  const text = `${seen?.kind === "down" ? "down" : "idle"}: ${why?.why || why?.kind || "why is not recorded"}`;
  const unknown = at > history.ended ? "no forecast" : !seen && "not recorded: no server ran, or none knew this node";
  return { text: unknown || text, run: null };
}

/** Return where a time is, in percent. @param {Past} past @param {number} at */
export const percentOf = ({ history: { began }, last }, at) => (
  100 * Math.min(1, Math.max(0, (at - began) / (last - began)))
);

/** @param {Past} past @param {number} from @param {number} to @param {number[]} place @param {string} kind */
function bar(past, from, to, [y, height], kind) {
  const [left, right] = [percentOf(past, from), percentOf(past, to)];
  return right > left && s("rect", { class: kind, x: `${left}%`, width: `${right - left}%`, y, height });
}

/** @param {string} id @param {string} d */
const pattern = (id, d) => s("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, s("path", { d }));

/** Draw the hours. @param {Past} past */
export function axis(past) {
  const { history: { began, ended }, last } = past;
  return h("div.strip-axis", { "aria-hidden": "true" }, s(
    "svg", {},
    pattern("hatched", "M0 6L6 0"), pattern("unknown", "M0 0L6 6"), pattern("unused", "M0 1.5h6M0 4.5h6"),
    hoursIn(began, last).map((at) => s("text", { x: `${percentOf(past, at)}%`, y: 12 }, clock(at))),
    s("text", { class: "strong", x: `${percentOf(past, ended)}%`, y: 26 }, "now"),
  ));
}

/** The narrowest bar, in percent: about a pixel. */
const LEAST = 0.06;

/**
 * Draw the runs of a strip: one path for each colour, since an element for each of thousands of bars takes too long.
 *
 * @param {Past} past @param {NodeHistory} node @param {number} row its height
 */
function bars(past, { gpus, runs }, row) {
  const { history: { ended: now }, ends } = past;
  /** @type {Map<string, {kind: string, fill: string, d: string}>} */
  const paths = new Map();
  for (const run of runs) {
    const [first, number] = [run.gpus[0], run.gpus.length];
    const parts = run.gpus[number - 1] - first < number ? [[first, number]] : run.gpus.map((gpu) => [gpu, 1]);
    const until = run.ended ?? now;
    const end = run.ended === null ? ends.get(run.run_id) ?? now : now;
    const fill = stroke(slot(run.run_id)).colour;
    const [left, right, last] = [run.began, until, end].map((at) => percentOf(past, at));
    const trains = percentOf(past, Math.min(run.trains_at ?? until, until));
    const begins = trains - left < LEAST ? left : trains;
    for (const [from, to, kind] of /** @type {[number, number, string][]} */ ([
      [left, begins, "expected"], [begins, Math.max(right, begins + LEAST), "held"],
      [percentOf(past, now), last, "expected"],
    ])) {
      if (to <= from || (kind === "held" && right <= begins)) continue;
      const path = paths.get(kind + fill) ?? { kind, fill, d: "" };
      paths.set(kind + fill, path);
      for (const [gpu, count] of parts) {
        const width = (to - from).toFixed(2);
        path.d += `M${from.toFixed(2)} ${gpu * row}h${width}v${count * row - 0.5}h-${width}z`;
      }
    }
  }
  const height = row * gpus;
  return s(
    "svg", { viewBox: `0 0 100 ${height}`, preserveAspectRatio: "none", height },
    [...paths.values()].map(({ kind, fill, d }) => s("path", { class: kind, fill, d })),
  );
}

/** Pixels of a letter and of its line, and of what is beside a strip; a strip is at least `LEAST_WIDTH` wide. */
const [LETTER, LINE, BESIDE, LEAST_WIDTH] = [6.5, 14, 130, 620];

/** Name the bars that have room for it. @param {Past} past @param {NodeHistory} node @param {number} row its height */
const names = (past, { runs }, row) => runs.map(({ name, gpus, began, ended }) => {
  const width = Math.max(LEAST_WIDTH, innerWidth - BESIDE);
  const [left, right] = [began, ended ?? past.history.ended].map((at) => percentOf(past, at));
  const fits = gpus.length * row >= LINE && (right - left) * width >= 100 * LETTER * name.length;
  return fits && s("text", { class: "none", x: `${left + 0.3}%`, y: (gpus[0] + gpus.length / 2) * row + 4 }, name);
});

/**
 * Draw a row for each GPU.
 *
 * @param {Past} past @param {NodeHistory} node @param {(text: string, at: number) => void} say
 */
export function strip(past, node, say) {
  const { history: { began, ended: now }, last } = past;
  if (!node.gpus) return null;
  const row = node.name ? Math.max(3, Math.min(10, 48 / node.gpus)) : 14;
  const height = row * node.gpus;
  const at = places.get(node.name) ?? { time: now, gpu: 0 };
  places.set(node.name, at);
  const move = (/** @type {number} */ time, /** @type {number} */ gpu) => {
    at.time = Math.min(last, Math.max(began, time));
    at.gpu = Math.min(node.gpus - 1, Math.max(0, gpu));
    const { text, run } = wordsAt(past, node, at.gpu, at.time);
    say(`${node.name ? `${node.name}, GPU ${at.gpu}` : "queue"}, ${clock(at.time)}: ${text}`, at.time);
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
      tabindex: "0", role: "img",
      "aria-label": `${node.name || "queue"} over time; arrow keys move, Enter opens the run`,
      onpointermove: point, onkeydown: walk, onfocus: () => move(at.time, at.gpu),
      onclick: (/** @type {MouseEvent} */ event) => open(point(event)),
    },
    s(
      "svg", { height },
      node.name && bar(past, began, now, [0, height], "unknown"),
      node.spans.map((span) => bar(past, span.began, Math.min(span.ended, now), [0, height], (
        span.kind === "in use" ? "idle" : "out"
      ))),
      bars(past, node, row),
      node.unused.map(({ gpu, began: from, ended }) => bar(past, from, ended, [gpu * row, row], "unused")),
      s("rect", { class: "now", x: `${percentOf(past, now)}%`, width: 1, height }),
      node.name && names(past, node, row),
      node.name
        ? [0, node.gpus - 1].map((gpu) => s("text", { class: "row", x: -8, y: (gpu + 0.5) * row + 4 }, gpu))
        : node.runs.map(({ name, began: from, gpus: [i] }) => s(
          "text", { class: "row", x: `${percentOf(past, from) - 0.5}%`, y: (i + 0.8) * row }, name,
        )),
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
  return { name: "", gpus: runs.length, spans: [], runs, unused: [] };
}
