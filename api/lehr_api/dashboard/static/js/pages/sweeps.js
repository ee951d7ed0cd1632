/** The list of sweeps, newest first. */

import { get } from "../api.js";
import { byId, fill, h, scrollable, throttled } from "../dom.js";
import * as f from "../format.js";
import { rowKeys } from "../keys.js";
import { listFilter } from "../listfilter.js";
import { empty, showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { stateMark } from "../status.js";
import { on, onCatchUp } from "../stream.js";

/** @typedef {import("../types.js").SweepView} SweepView */

const place = byId("sweeps");
/** @type {SweepView[]} */
let sweeps = [];
/** @type {string | null} */
let cursor = null;
let at = -1;

/** @param {SweepView} sweep */
function best(sweep) {
  if (sweep.held_out === "different") return h("span.dim", { title: sweep.held_out_note }, "different held-out sets");
  if (!sweep.best_parameters) return h("span.dim", {}, f.NONE);
  const where = Object.entries(sweep.best_parameters).map(([path, value]) => `${path.split(".").at(-1)} ${f.specValue(value, path)}`).join(", ");
  return [h("b", {}, f.metric(sweep.metric, sweep.best_value)), h("span.dim", {}, ` at ${where}`)];
}

/** @param {SweepView} sweep @param {number} i */
function row(sweep, i) {
  const size = Object.values(sweep.counts).reduce((a, b) => a + b, 0);
  return h(
    i === at ? "tr.at" : "tr",
    {},
    h("td", {}, h("a.name", { href: `/sweeps/${sweep.id}` }, sweep.name)),
    h("td", {}, Object.entries(sweep.counts).filter(([, n]) => n > 0).map(([state, n], j) => [j > 0 && "  ", stateMark(state, `${n} ${state === "queued" ? "wait" : state}`)])),
    h("td.num", {}, f.integer(size)),
    h("td", {}, best(sweep)),
    h("td.dim", {}, sweep.parameters.join(" × ")),
    h("td", {}, sweep.project),
    h("td", {}, f.time(sweep.created_at)),
  );
}

function draw() {
  if (!sweeps.length && looked()) {
    fill(place, empty("No sweep matches this filter"));
    return;
  }
  if (!sweeps.length) {
    fill(place, empty("No sweeps yet", h("p", {}, "A sweep runs one spec at many values. Eight learning rates of a small model, on any machine:"), h("pre", {}, "lehr demo"), h("p", {}, "The same as a file that you can change:"), h("pre", {}, "lehr sweep sweeps/lr_grid_small.yaml")));
    return;
  }
  fill(
    place,
    scrollable(
      h(
        "table",
        { "aria-label": "Sweeps" },
        h("thead", {}, h("tr", {}, ["name", "runs", "trials", "best", "over", "project", "submitted"].map((title) => h(title === "trials" ? "th.num" : "th", { scope: "col" }, title)))),
        h("tbody", {}, sweeps.map(row)),
      ),
    ),
    cursor && h("p.runs-foot", {}, h("button", { type: "button", onclick: more }, "Older sweeps")),
  );
}

async function load() {
  const asked = looked();
  try {
    const page = await get("/sweeps", { limit: 100, search: asked });
    // Somebody has typed on in the meantime.
    if (asked !== looked()) return;
    const fresh = new Set(page.items.map((/** @type {SweepView} */ sweep) => sweep.id));
    const older = sweeps.filter((sweep) => !fresh.has(sweep.id));
    sweeps = [...page.items, ...older];
    if (!older.length) cursor = page.next_cursor;
    draw();
  } catch (error) {
    if (!sweeps.length) showFailure(place, error);
  }
}

async function more() {
  const from = cursor;
  const page = await get("/sweeps", { limit: 100, cursor: from, search: looked() });
  // Two quick clicks would load the same page twice.
  if (cursor !== from) return;
  sweeps = [...sweeps, ...page.items];
  cursor = page.next_cursor;
  draw();
}

const looked = listFilter(() => {
  sweeps = [];
  cursor = null;
  load();
});
installPage();
rowKeys({
  count: () => sweeps.length,
  show: (index) => {
    at = index;
    draw();
  },
  open: (index) => location.assign(`/sweeps/${sweeps[index].id}`),
});
const reload = throttled(load, 2000);
on("sweep", reload);
onCatchUp(reload);
load();
