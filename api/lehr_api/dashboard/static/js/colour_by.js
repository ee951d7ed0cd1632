/** Colours by a setting or a metric: the same field, scale and key on every page. */

import { keyOf, scaleOf } from "./colour.js";
import { fill, h } from "./dom.js";
import { metric, specValue } from "./format.js";
import { tryTo } from "./notices.js";
import { keep } from "./patch.js";
import { Configs } from "./runs/configs.js";
import { valueOf } from "./runs/filter.js";
import { read, write } from "./urlstate.js";
/** @import { RunView } from "./types.js" */

/**
 * @param {string} colour the setting or metric; "" for what colours show otherwise
 * @param {RunView[]} runs all that are shown
 * @param {Configs} configs
 * @param {string} [groups] the key that groups them: without a colour they show its numbers
 * @returns {{scale: import("./colour.js").Scale, value: (run: RunView) => any} | null} null for ""
 */
export function scaleBy(colour, runs, configs, groups = "") {
  const title = colour || groups;
  if (!title) return null;
  const key = title.toLowerCase();
  const value = (/** @type {RunView} */ run) => valueOf(run, key, configs) ?? null;
  const isSetting = configs.pathsOf(key).length > 0;
  const scale = scaleOf(
    runs.map(value), title,
    (one) => (isSetting || typeof one !== "number" ? specValue(one, title) : metric(title, one)),
  );
  return colour || scale.kind === "number" ? { value, scale } : null;
}

/**
 * @param {string} colour
 * @param {string} usual what colours show otherwise: "by run"
 * @param {string[]} offered
 * @param {(colour: string) => void} onChange
 * @param {() => void} [onfocus]
 */
export const colourField = (colour, usual, offered, onChange, onfocus) => [
  h("label.field", {}, "colour", h("input", {
    type: "search", list: "colour-keys", value: colour, placeholder: usual, spellcheck: "false", onfocus,
    title: "A setting or a metric: ordered colours for numbers, distinct ones for words",
    onchange: (/** @type {any} */ { target }) => onChange(target.value.trim()),
  })),
  h("datalist", { id: "colour-keys" }, offered.map((path) => h("option", { key: path, value: path }))),
];

/** What colours show on a page that has no other use for configs; its address keeps it. */
export class Colours {
  /** @param {() => void} onChange called when something has another colour */
  constructor(onChange) {
    this.by = read("colour") ?? "";
    this.configs = new Configs();
    this.place = keep(h("span.colours"));
    this.onChange = onChange;
    /** @type {RunView[]} */
    this.runs = [];
    this.usual = this.groups = "";
    /** @type {ReturnType<typeof scaleBy>} */
    this.scale = null;
  }

  /** Return the look of a run by its value; null where colours show something else. @param {RunView | undefined} run */
  of(run) {
    return this.scale && run
      ? { colour: this.scale.scale.colour(this.scale.value(run)), dash: /** @type {const} */ ("solid") } : null;
  }

  /**
   * Fetch what the chosen key needs of these runs.
   *
   * @param {RunView[]} runs @param {string} usual @param {string} [groups] what runs are grouped by
   */
  async show(runs, usual, groups = "") {
    [this.runs, this.usual, this.groups] = [runs, usual, groups];
    if (this.by || groups) await this.#learn();
    this.draw();
  }

  async #learn() {
    const ids = this.runs.map(({ id }) => id);
    await this.configs.load(ids);
    const key = this.by || this.groups;
    const known = !key || this.configs.pathsOf(key.toLowerCase()).length
      || this.runs.some(({ latest }) => key in latest);
    if (!known) await this.configs.load(ids, [key]);
  }

  draw() {
    this.scale = scaleBy(this.by, this.runs, this.configs, this.groups);
    const metrics = new Set(this.runs.flatMap(({ latest }) => Object.keys(latest)));
    const differing = this.configs.differing(this.runs.map(({ id }) => id));
    fill(this.place, colourField(
      this.by, this.usual, [...new Set([...differing, ...metrics, ...this.configs.paths])],
      (by) => tryTo(async () => {
        this.by = by;
        write({ colour: by });
        await this.#learn();
        this.draw();
        this.onChange();
      }),
      // Completion needs the configs: they are fetched once somebody wants to choose.
      () => tryTo(async () => {
        await this.#learn();
        this.draw();
      }),
    ), this.scale && keyOf(this.scale.scale));
  }
}
