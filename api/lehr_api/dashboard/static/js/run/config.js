/** The config of a run: complete and searchable; and its provenance. */

import { codePanel } from "../code.js";
import { dataTable, fill, h, input, mount } from "../dom.js";
import { factList } from "../form.js";
import { flatten, specCell } from "../format.js";
import { empty } from "../notices.js";
import { read, write } from "../urlstate.js";
/** @import { RunDetail } from "../types.js" */

/** @param {Record<string, any>} provenance */
function provenanceList(provenance) {
  const patch = provenance.git?.diff;
  const flat = [...flatten(provenance)].filter(([path]) => path !== "git.diff");
  if (!flat.length && !patch) return h("p.hint", {}, "No provenance was recorded for this run.");
  return [
    factList(flat.map(
      ([path, value]) => [path, h("span.mono", {}, typeof value === "string" ? value : specCell(value, path))],
    )),
    patch && h("details", {}, h("summary", {}, "uncommitted changes at submission"), h("pre.block", {}, String(patch))),
  ];
}

/** Show a value as a YAML file has it, so that it can be copied into one. @param {any} value @param {string} path */
const asYaml = (value, path) =>
  value === null ? h("span.dim", {}, "null") : Number.isInteger(value) ? String(value) : specCell(value, path);

/**
 * Return the values of its spec by their paths, and what its program gave to wandb as its config.
 *
 * @param {Pick<RunDetail, "spec" | "logged_config">} run
 */
export function configOf(run) {
  return new Map([...flatten(run.spec), ...Object.entries(run.logged_config).map(
    ([name, value]) => /** @type {[string, unknown]} */ ([`wandb.config.${name}`, value])
  )]);
}

/** @param {HTMLElement} place @param {RunDetail} run @returns {import("./tabs.js").OpenTab} */
export function openConfig(place, run) {
  const own = configOf(run);
  let needle = read("key") ?? "";
  const table = h("div");

  const draw = () => {
    const shown = [...own].filter(([path]) => path.toLowerCase().includes(needle.toLowerCase()));
    const rows = shown.map(
      ([path, value]) => h("tr", {}, h("td.key.shrink", {}, path), h("td.value", {}, asYaml(value, path)))
    );
    fill(
      table,
      rows.length ? dataTable("Config", null, rows, { kind: ".config" }) : empty("No field name contains this"),
    );
  };

  const keyInput = input({ type: "search", placeholder: "field",
    "aria-label": "Fields that have", value: needle, oninput: () => {
    needle = keyInput.value;
    write({ key: needle });
    draw();
  } });
  mount(
    place,
    h(
      "div.bar", {}, keyInput,
      h("span.bar-end", {}, h(
        "a", { href: `/api/v1/runs/${run.id}/config`, download: `${run.name}.yaml` }, "config.yaml",
      )),
    ),
    table,
    h("h2", {}, "Code"),
    codePanel(run),
    h("h2", {}, "Provenance"),
    provenanceList(run.provenance),
  );
  draw();
  return {};
}
