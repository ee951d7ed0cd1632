/** The config of a run: complete, searchable, compared with another run; and its provenance. */

import { get } from "../api.js";
import { fill, h, mount, scrollable } from "../dom.js";
import { differing, flatten } from "../flat.js";
import { NONE, specCell } from "../format.js";
import { empty, message } from "../notices.js";
import { read, write } from "../urlstate.js";
import { codePanel } from "./code.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */

/** @param {Record<string, any>} provenance */
function provenanceList(provenance) {
  const { diff, git_diff: gitDiff, ...rest } = provenance;
  const patch = diff ?? gitDiff ?? provenance.git?.diff;
  const flat = [...flatten(rest)].filter(([path]) => !path.endsWith("diff"));
  if (!flat.length && !patch) return h("p.hint", {}, "No provenance was recorded for this run.");
  return [
    h("dl.facts", {}, flat.map(([path, value]) => [
      h("dt", {}, path), h("dd.mono", {}, typeof value === "string" ? value : specCell(value, path)),
    ])),
    patch && h("details", {}, h("summary", {}, "uncommitted changes at submission"), h("pre.block", {}, String(patch))),
  ];
}

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

/**
 * @param {HTMLElement} place
 * @param {RunDetail} run
 * @returns {import("./tabs.js").OpenTab}
 */
export function openConfig(place, run) {
  const own = configOf(run);
  /** @type {RunDetail | null} */
  let other = null;
  /** @type {string | null} what it is compared with, when that is no run */
  let preset = null;
  /** @type {any} */
  let presets = null;
  let needle = read("key") ?? "";
  const asked = read("against") ?? "";
  const table = h("div");
  const problem = h("span.problem", { role: "alert" });

  /** @param {string} name a preset: its model, and defaults for all else */
  const ofPreset = (name) => flatten({ train: { ...presets.defaults, model: presets.models[name] } });

  const draw = () => {
    const theirs = other ? configOf(other) : preset ? ofPreset(preset) : null;
    // Fields that a preset does not set (data, batch, steps, resources) are not differences.
    const ours = preset && theirs
      ? new Map([...own].filter(([path]) => [...theirs.keys()].some(
        (one) => one === path || path.startsWith(`${one.split(".").slice(0, 2).join(".")}.`)
      )))
      : own;
    const paths = theirs ? differing([ours, theirs]) : [...own.keys()];
    const shown = paths.filter((path) => path.toLowerCase().includes(needle.toLowerCase()));
    if (!shown.length) {
      fill(table, empty(
        theirs && !paths.length
          ? (preset ? `Nothing differs from ${preset} and the defaults` : "The two configs are the same")
          : "No field name contains this"
      ));
      return;
    }
    fill(
      table,
      scrollable(
        h(
          "table.config",
          { "aria-label": "Config" },
          theirs
            && h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "differs"), h("th", { scope: "col" }, run.name), h(
              "th", { scope: "col" }, other?.name ?? `preset ${preset}`,
            ))),
          h(
            "tbody",
            {},
            shown.map((path) =>
              h("tr", {}, h("td.key.shrink", {}, path), h("td.value", {}, specCell(own.get(path), path)), theirs && h(
                "td.value", {}, theirs.has(path) ? specCell(theirs.get(path), path) : NONE,
              )),
            ),
          ),
        ),
      ),
    );
  };

  const against = async (/** @type {string} */ ref) => {
    problem.textContent = "";
    write({ against: ref });
    preset = null;
    choice.value = "";
    try {
      if (ref.startsWith("preset:")) {
        const name = ref.slice("preset:".length);
        await learnPresets();
        if (!presets.models[name]) {
          throw new Error(`There is no preset ${name}; there are ${Object.keys(presets.models).join(", ")}.`);
        }
        preset = choice.value = name;
        other = null;
        refInput.value = "";
        draw();
        return;
      }
      other = ref ? await get(`/runs/${encodeURIComponent(ref)}`) : null;
    } catch (error) {
      other = null;
      problem.textContent = message(error);
    }
    draw();
  };

  const fetchPresets = async () => {
    presets = await get("/presets");
    for (const [name, summary] of Object.entries(presets.summaries)) {
      choice.append(h("option", { value: name, title: summary }, name));
    }
  };
  /** @type {Promise<void> | null} */
  let learning = null;
  const learnPresets = () => (learning ??= fetchPresets());
  const choice = /** @type {HTMLSelectElement} */ (h(
    "select", { onchange: () => against(choice.value && `preset:${choice.value}`) }, h("option", { value: "" }, "none"),
  ));
  const keyInput = /** @type {HTMLInputElement} */ (h("input", { type: "search", placeholder: "field",
    "aria-label": "Fields that have", value: needle, oninput: () => {
    needle = keyInput.value;
    write({ key: needle });
    draw();
  } }));
  const refInput = /** @type {HTMLInputElement} */ (h("input", {
    type: "search", placeholder: "a run's name or id", value: asked.startsWith("preset:") ? "" : asked,
    onchange: () => against(refInput.value.trim()),
  }));
  mount(
    place,
    h(
      "div.bar", {}, keyInput, h("label.field", {}, "differences to run", refInput),
      h("label.field", {}, "or preset", choice), problem,
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
  if (asked) against(asked);
  learnPresets().catch((error) => {
    learning = null;
    problem.textContent = message(error);
  });
  return {};
}
