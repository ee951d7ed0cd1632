/** The pages that list sweeps or rollouts, newest first: the filter, older pages, keys, live updates. */

import { get } from "./api.js";
import { byId, dataTable, fill, h, throttled } from "./dom.js";
import { rowKeys } from "./keys.js";
import { empty, showFailure } from "./notices.js";
import { installPage } from "./page.js";
import { on, onCatchUp } from "./stream.js";
import { read, write } from "./urlstate.js";

const TYPING_MS = 200;

/** @param {() => void} onChange @returns {() => string} what is looked for */
export function listFilter(onChange) {
  const input = /** @type {HTMLInputElement} */ (byId("filter"));
  input.value = read("filter") ?? "";
  byId("filter-form").addEventListener("submit", (event) => event.preventDefault());
  let typing = 0;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = window.setTimeout(() => {
      write({ filter: input.value.trim() });
      onChange();
    }, TYPING_MS);
  });
  return () => input.value.trim();
}

const PAGE = 100;
const RELOAD_MS = 2000;

/**
 * Show the list, and keep it up to date.
 *
 * @template {{id: string}} View
 * @param {object} options
 * @param {"sweep" | "rollout"} options.noun
 * @param {string[]} options.heads the heads of the columns
 * @param {(view: View) => HTMLElement[]} options.cells the cells of a row
 * @param {() => HTMLElement} options.none what stands in place of the first list
 */
export function groupList({ noun, heads, cells, none }) {
  const plural = `${noun}s`;
  const place = byId(plural);
  /** @type {View[]} */
  let views = [];
  /** @type {string | null} */
  let cursor = null;
  let at = -1;

  /** @param {View} view @param {number} i */
  const row = (view, i) => h(i === at ? "tr.at" : "tr", { [`data-${noun}`]: view.id }, cells(view));

  function draw() {
    if (!views.length) {
      fill(place, looked() ? empty(`No ${noun} matches this filter`) : none());
      return;
    }
    fill(
      place,
      dataTable(`${plural[0].toUpperCase()}${plural.slice(1)}`, heads, views.map(row), { kind: `.${plural}` }),
      cursor && h("p.runs-foot", {}, h("button", { type: "button", onclick: more }, `Older ${plural}`)),
    );
  }

  async function load() {
    const asked = looked();
    try {
      const page = await get(`/${plural}`, { limit: PAGE, search: asked });
      // The filter may have changed since the request.
      if (asked !== looked()) return;
      const fresh = new Set(page.items.map((/** @type {View} */ view) => view.id));
      const older = views.filter((view) => !fresh.has(view.id));
      views = [...page.items, ...older];
      if (!older.length) cursor = page.next_cursor;
      draw();
    } catch (error) {
      if (!views.length) showFailure(place, error);
    }
  }

  async function more() {
    const from = cursor;
    const page = await get(`/${plural}`, { limit: PAGE, cursor: from, search: looked() });
    // Two quick clicks would load the same page twice.
    if (cursor !== from) return;
    views = [...views, ...page.items];
    cursor = page.next_cursor;
    draw();
  }

  const looked = listFilter(() => {
    views = [];
    cursor = null;
    load();
  });
  installPage();
  rowKeys({
    count: () => views.length,
    show: (index) => {
      at = index;
      draw();
    },
    open: (index) => location.assign(`/${plural}/${views[index].id}`),
  });
  const reload = throttled(load, RELOAD_MS);
  on(noun, reload);
  onCatchUp(reload);
  load();
}
