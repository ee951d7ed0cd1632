/** What the runs page shows: groups, curves beside the table, columns; and what it says before there is a run. */

import { checkbox, fill, h } from "../dom.js";
import { empty } from "../notices.js";
import { COLUMNS } from "./columns.js";

/**
 * @typedef {object} Choices
 * @property {boolean} grouped
 * @property {boolean} curves
 * @property {import("./columns.js").Column[]} base
 * @property {string[]} values names of the columns for configs and metrics
 * @property {string[]} varying paths by which the runs differ
 * @property {string} by what the curves are grouped by
 * @property {string[]} paths all that configs have
 * @property {(by: string) => void} onBy
 * @property {(yes: boolean) => void} onGrouped
 * @property {(yes: boolean) => void} onCurves
 * @property {(key: string, yes: boolean) => void} onColumn
 * @property {(names: string[] | null) => void} onValues null for what differs
 */

const OFFERED = 12;
/** A list of suggestions may be long: the browser shows those that match what is typed. */
const MOST_OFFERED = 300;

/** @param {HTMLElement} place @param {Choices} choices */
export function drawOptions(place, choices) {
  const { values, varying } = choices;
  const add = (/** @type {Event} */ event) => {
    event.preventDefault();
    const form = /** @type {HTMLFormElement} */ (event.currentTarget);
    const field = /** @type {HTMLInputElement} */ (form.elements.namedItem("value"));
    const name = field.value.trim();
    field.value = "";
    if (name && !values.includes(name)) choices.onValues([...values, name]);
  };
  const offered = [...new Set([...values, ...varying])].slice(0, OFFERED);
  fill(
    place,
    h(
      "button",
      {
        key: "curves", type: "button", "aria-pressed": String(choices.curves),
        title: "Curves of the filtered runs, beside the table", onclick: () => choices.onCurves(!choices.curves),
      },
      "Curves",
    ),
    h("label.check", { key: "groups" }, checkbox(choices.grouped, choices.onGrouped), "group sweeps"),
    choices.curves &&
      h(
        "label.field",
        { key: "by" },
        "mean by",
        h("input", {
          type: "search", list: "group-paths", size: "14", value: choices.by, placeholder: "lr, tag",
          spellcheck: "false",
          title: "Draw runs with the same value as one curve: their mean, with the range as a band.",
          onchange: (/** @type {Event} */ event) =>
            choices.onBy(/** @type {HTMLInputElement} */ (event.target).value.trim()),
        }),
        h("datalist", { id: "group-paths" }, [
          ...varying, "tag", "project", ...choices.paths,
        ].slice(0, MOST_OFFERED).map((path) => h("option", { key: path, value: path }))),
      ),
    h(
      "details.menu",
      { key: "columns" },
      h("summary", {}, "Columns"),
      h(
        "div.menu-list",
        {},
        COLUMNS.filter((column) => column.key !== "name").map((column) =>
          h(
            "label.check", { key: column.key },
            checkbox(choices.base.includes(column), (yes) => choices.onColumn(column.key, yes)), column.title,
          ),
        ),
        h("b", { key: "differs" }, "config and metrics"),
        offered.map((name) =>
          h(
            "label.check", { key: `value ${name}` },
            checkbox(values.includes(name), (yes) => choices.onValues(
              yes ? [...values, name] : values.filter((other) => other !== name)
            )),
            name,
          ),
        ),
        h("form", { key: "add", onsubmit: add }, h("input", {
          type: "text", name: "value", "aria-label": "Add a column", placeholder: "config path or metric",
          spellcheck: "false",
        })),
        h("button.quiet", { key: "auto", type: "button", onclick: () => choices.onValues(null) }, "what differs"),
      ),
    ),
  );
}

export function welcome() {
  return empty(
    "No runs yet",
    h("p", {}, "Eight learning rates of a small model, on any machine and in some minutes:"),
    h("pre", {}, "lehr demo"),
    h("p", {}, "Or submit a spec of your own, as a run or a sweep:"),
    h("pre", {}, "lehr submit my-run.yaml\nlehr sweep sweeps/lr_grid_small.yaml"),
    h("p", {}, "They appear here at once."),
  );
}
