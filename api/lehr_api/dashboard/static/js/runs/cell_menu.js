/** What a filter makes of the value of a cell: a click on it, or f on a row, offers only this, or not this. */

import { h } from "../dom.js";
import { shortcut } from "../keys.js";
import { COLUMNS } from "./columns.js";
import { shortName } from "./configs.js";
import { parseFilter, valuesOf } from "./filter.js";

/** @typedef {import("../types.js").RunView} RunView */

/**
 * Return the parts of a filter that let the runs of a cell's value through: one of each tag.
 *
 * @param {RunView} run
 * @param {import("./columns.js").Column} column
 * @param {import("./configs.js").Configs} configs
 */
export function partsOf(run, { key, setting }, configs) {
  if (key === "tags") return run.tags.map((tag) => `tag:${tag}`);
  if (key === "state" || key === "project") return [`${key}:${run[key]}`];
  const value = (setting && configs.value(run.id, key)) ?? null;
  if (value === null || typeof value === "object" || /[",*]/.test(String(value))) return [];
  const short = shortName(key, []);
  const same = parseFilter(`${short}=1`).keys.length > 0 && valuesOf(run, short.toLowerCase(), configs)[0] === value;
  return [`${same ? short : key}=${/\s/.test(String(value)) ? `"${value}"` : value}`];
}

/**
 * Return a filter with another part. What it has of the same key and sign, and the opposite, give way to it.
 *
 * @param {string[]} all
 * @param {string} part
 */
export function narrowed(all, part) {
  const keyOf = (/** @type {string} */ one) => one.replace(/[:=].*/, "");
  const opposite = part.startsWith("-") ? part.slice(1) : `-${part}`;
  return [...all.filter((one) => one !== opposite && (part.startsWith("-") || keyOf(one) !== keyOf(part))), part];
}

/** @param {Element} place @param {string[]} found @param {(part: string) => void} onChoose */
function openMenu(place, found, onChoose) {
  if (!found.length) return;
  const one = (/** @type {string} */ word, /** @type {string} */ part) => h("button.quiet", {
    type: "button", onclick: () => {
      menu.hidePopover();
      onChoose(part);
    },
  }, `${word} ${part.replace(/^-/, "")}`);
  const menu = h("div.menu-list.cell-menu", {
    popover: "auto", role: "group", "aria-label": "Filter", ontoggle: (/** @type {ToggleEvent} */ event) => {
      if (event.newState === "closed") menu.remove();
    },
  }, [...new Set(found)].flatMap((part) => [one("only", part), one("not", `-${part}`)]));
  document.body.append(menu);
  menu.showPopover();
  const { left, bottom } = place.getBoundingClientRect();
  menu.style.left = `${Math.max(0, Math.min(left, innerWidth - menu.offsetWidth - 8))}px`;
  menu.style.top = `${Math.max(0, Math.min(bottom, innerHeight - menu.offsetHeight - 8))}px`;
  menu.querySelector("button")?.focus();
}

/**
 * Open the menu of a cell at a click, and at f that of all cells of the marked row. Escape closes it.
 *
 * @param {import("./rows.js").Rows<import("./groups.js").Item>} rows
 * @param {{items: import("./groups.js").Item[], columns: import("./columns.js").Column[]}} state
 * @param {import("./configs.js").Configs} configs
 * @param {(part: string) => void} onChoose
 */
export function cellMenu(rows, state, configs, onChoose) {
  const offer = (/** @type {Element} */ place, /** @type {RunView} */ run, all = state.columns) => (
    openMenu(place, all.flatMap((column) => partsOf(run, column, configs)), onChoose)
  );
  rows.body.onclick = ({ target }) => {
    const cell = /** @type {Element} */ (target).closest("td");
    const item = rows.drawn.get(`run ${cell?.parentElement?.dataset.run}`)?.item;
    const acts = /** @type {Element} */ (target).closest("a, button, label") || getSelection()?.toString();
    if (cell?.cellIndex && item?.kind === "run" && !acts) offer(cell, item.run, [state.columns[cell.cellIndex - 1]]);
  };
  shortcut("f", "filter by a value of the row", () => {
    const item = state.items[rows.marked];
    const place = item?.kind === "run" && rows.drawn.get(`run ${item.run.id}`)?.row.querySelector(".col-name");
    if (place) offer(place, item.run, [...state.columns, ...COLUMNS]);
  });
}
