/**
 * The line above the runs: filter, project, Group and View; the menu of a cell, which narrows the filter to its value;
 * and what is said before there is a run.
 */

import { get } from "../api.js";
import { byId, checkbox, fill, h } from "../dom.js";
import { integer } from "../format.js";
import { shortcut } from "../keys.js";
import { empty } from "../notices.js";
import { COLUMNS } from "./columns.js";
import { shortName } from "./configs.js";
import { parseFilter, parts, valuesOf } from "./filter.js";
import { asking, menu, removable, savedViews } from "./saved.js";

/** @import { RunView } from "../types.js" */

/** @param {string[]} values */
const optionsOf = (values) => values.map((value) => h("option", { key: value, value }, value));

const OFFERED = 12;
const TYPING_MS = 200;
/** A list of suggestions may be long: the browser shows those that match what is typed. */
const MOST_OFFERED = 300;

/** All projects, as the server knows them. @type {string[]} */
let allProjects = [];
/** Without them the menu has those of the runs that are here. */
export async function learnProjects() {
  allProjects = (await get("/projects").catch(() => ({ items: [] }))).items;
}

/** The filter: chips, a field with the part that is being typed, and the project, which has a menu. */
export class FilterBar {
  /** @param {HTMLInputElement} field @param {() => void} onChange @param {(text: string) => string[]} complete */
  constructor(field, onChange, complete) {
    this.field = field;
    this.onChange = onChange;
    /** @type {string[]} */
    this.parts = [];
    this.project = "";
    const offers = byId("filter-offers");
    const offer = () => fill(offers, optionsOf(complete(field.value.trim())));
    const commit = () => this.set([...this.whole, ...parts(field.value)]);
    field.addEventListener("focus", offer);
    let typing = 0;
    field.addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = window.setTimeout(onChange, TYPING_MS);
      // A value that was chosen is no typed letter; a key waits for its value.
      if (!("data" in event) && /[:=<>]./.test(field.value)) commit();
      else offer();
    });
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Backspace" || field.value || !this.parts.length) return;
      event.preventDefault();
      this.#remove(this.parts.length - 1);
    });
    byId("filter-form").addEventListener("submit", (event) => {
      event.preventDefault();
      commit();
    });
  }

  get whole() { return [...(this.project ? [`project:${this.project}`] : []), ...this.parts]; }

  get text() { return [...this.whole, this.field.value.trim()].filter(Boolean).join(" "); }

  /** @param {string[]} all @param {string} [typed] what stays in the field */
  set(all, typed = "") {
    const own = all.filter((part) => /^project:[^,]+$/.test(part));
    this.project = own.length === 1 ? own[0].slice("project:".length) : "";
    this.parts = own.length === 1 ? all.filter((part) => part !== own[0]) : all;
    this.field.value = typed;
    this.draw();
    this.onChange();
  }

  /** Take a part out. @param {number} at @param {string} [typed] what stays in the field: by default, the part */
  #remove(at, typed = this.parts[at]) {
    this.parts.splice(at, 1);
    this.set(this.whole, typed);
    this.field.focus();
  }

  draw() {
    fill(byId("chips"), this.parts.map((part, i) => removable(
      h("button", { type: "button", title: "Change this part", onclick: () => this.#remove(i) }, part),
      part, () => this.#remove(i, this.field.value),
    )));
  }
}

/**
 * @typedef {{by: string, curves: boolean, base: import("./columns.js").Column[], values: string[], varying: string[],
 *   paths: string[], project: string, projects: string[], onProject: (project: string) => void, onBy: (by: string) =>
 *   void, onCurves: (yes: boolean) => void, onColumn: (key: string, yes: boolean) => void, onValues: (names: string[] |
 *   null) => void}} Choices `by`: "" for nothing; `values`: names of the columns for configs and metrics, null for what
 *   differs; `varying`: paths by which the runs differ; `paths`: all that configs have; `project`: "" for all
 *   `projects`: those of the runs that are here
 */

/** @param {HTMLElement} place @param {Choices} choices */
export function drawOptions(place, choices) {
  const { by, values, varying } = choices;
  const choose = (/** @type {string} */ one) => {
    // Closed, or it hides the curves that it has just changed.
    const head = /** @type {HTMLElement | null} */ (place.querySelector("details[open] > summary"));
    head?.focus();
    head?.click();
    choices.onBy(one);
  };
  const projects = new Set([...allProjects, ...choices.projects, choices.project]);
  const group = (/** @type {string} */ one) => h("button.quiet", {
    key: one, type: "button", "aria-pressed": String(one === by), onclick: () => choose(one),
  }, one || "nothing");
  const tick = (/** @type {string} */ name, /** @type {boolean} */ yes, /** @type {(yes: boolean) => void} */ act) =>
    h("label.check", { key: name }, checkbox(yes, act), name);
  fill(
    place,
    h("select", {
      key: "project", "aria-label": "Project", value: choices.project,
      onchange: (/** @type {any} */ { target }) => choices.onProject(target.value),
    }, h("option", { value: "" }, "all projects"), optionsOf([...projects].filter(Boolean).sort())),
    menu(
      "group", `Group: ${by || "nothing"}`,
      [...new Set(["", "sweep", "rollout", ...varying.slice(0, 6), "tag", "project", by])].map(group),
      asking("Group by", "any key: lr, tag:omk", choose, { list: "group-paths" }),
      h("datalist", { id: "group-paths" }, optionsOf(choices.paths.slice(0, MOST_OFFERED))),
    ),
    menu(
      "view", "View",
      tick("charts", choices.curves, choices.onCurves),
      savedViews(() => drawOptions(place, choices)),
      h("b", { key: "columns" }, "columns"),
      COLUMNS.filter((column) => column.key !== "name").map((column) => tick(
        column.title, choices.base.includes(column), (yes) => choices.onColumn(column.key, yes),
      )),
      h("b", { key: "differs" }, "config and metrics"),
      [...new Set([...values, ...varying])].slice(0, OFFERED).map((name) => tick(name, values.includes(name), (yes) => (
        choices.onValues(yes ? [...values, name] : values.filter((other) => other !== name))
      ))),
      asking("Add a column", "config path or metric", (name) => choices.onValues([...new Set([...values, name])])),
      h("button.quiet", { key: "auto", type: "button", onclick: () => choices.onValues(null) }, "what differs"),
    ),
  );
}

/**
 * @param {import("./list.js").RunList} list
 * @param {import("./filter.js").Filter} filter that lets none of them through
 * @param {() => void} onAll
 */
export function noMatch(list, filter, onAll) {
  const what = list.complete || !filter.test
    ? "No run matches this filter"
    : `None of the newest ${integer(list.runs.size)} runs matches this filter`;
  return empty(what, h("p", {}, h("button", { type: "button", onclick: onAll }, "Show all runs")));
}

const SWEEP = "lehr sweep sweeps/lr_grid_small.yaml";
/** What is said before there is any: a head, then texts and commands in turn. @type {Record<string, string[]>} */
const NONE_YET = {
  "": [
    "No runs yet", "Eight learning rates of a small model, on any machine and in some minutes:", "lehr demo",
    "Or submit a spec of your own, as a run or a sweep:", `lehr submit my-run.yaml\n${SWEEP}`,
    "They appear here at once.",
  ],
  sweep: [
    "No sweeps yet", "A sweep runs one spec at many values. Eight learning rates of a small model, on any machine:",
    "lehr demo", "The same as a file that you can change:", SWEEP,
  ],
  rollout: [
    "No rollouts yet",
    "A rollout takes one run to all its GPUs in four stages: on the CPU, on one GPU, on two, on all. Each stage must pass its gates, so a bug is found in the cheapest stage:",
    "lehr rollout sweeps/rollout_small.yaml",
  ],
};

/** @param {string} section */
export function welcome(section) {
  const [head, ...texts] = NONE_YET[section];
  return empty(head, texts.map((text, i) => h(i % 2 ? "pre" : "p", {}, text)));
}

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
      list.hidePopover();
      onChoose(part);
    },
  }, `${word} ${part.replace(/^-/, "")}`);
  const list = h("div.menu-list.cell-menu", {
    popover: "auto", role: "group", "aria-label": "Filter", ontoggle: (/** @type {ToggleEvent} */ event) => {
      if (event.newState === "closed") list.remove();
    },
  }, [...new Set(found)].flatMap((part) => [one("only", part), one("not", `-${part}`)]));
  document.body.append(list);
  list.showPopover();
  const { left, bottom } = place.getBoundingClientRect();
  list.style.left = `${Math.max(0, Math.min(left, innerWidth - list.offsetWidth - 8))}px`;
  list.style.top = `${Math.max(0, Math.min(bottom, innerHeight - list.offsetHeight - 8))}px`;
  list.querySelector("button")?.focus();
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
