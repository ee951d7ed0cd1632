/** One toolbar for all charts of a page: x axis, smoothing, scales, range. The URL keeps its state. */

import { fill, h, input } from "../dom.js";
import { integer } from "../format.js";
import { keep } from "../patch.js";
import { read, write } from "../urlstate.js";

/** @typedef {Pick<import("../types.js").RunView, "tokens_per_step" | "flops_per_token">} Counted */

/**
 * Return why an x axis would show nothing of its own; null if it can be chosen.
 *
 * @param {string} x
 * @param {Counted[]} runs those that are drawn
 */
export function whyNot(x, runs) {
  if (!runs.length) return null;
  // A program that declares no tokens counts one per step: the axis would only repeat the steps.
  if (x === "tokens" && runs.every((run) => run.tokens_per_step <= 1)) {
    return "No tokens are known. A program declares them as trainer.tokens_per_step.";
  }
  if (x === "flops" && runs.every((run) => (run.flops_per_token ?? null) === null)) {
    return "The FLOPs per token are not known: for a program, and while the sequence length changes.";
  }
  return null;
}

/**
 * @typedef {object} View
 * @property {"step" | "tokens" | "time" | "flops"} x
 * @property {number} smooth
 * @property {boolean} logx
 * @property {boolean} logy
 * @property {boolean} band
 * @property {boolean} old
 * @property {boolean} wide
 * @property {[number, number | null] | null} range
 */

/** @returns {View} */
export function viewFromAddress() {
  const x = read("x");
  const smooth = Number(read("smooth") ?? 0);
  const range = /^(\d+)-(\d*)$/.exec(read("range") ?? "");
  return {
    x: x === "tokens" || x === "time" || x === "flops" ? x : "step",
    smooth: smooth > 0 && smooth < 1 ? smooth : 0,
    logx: read("logx") === "1",
    logy: read("logy") === "1",
    band: read("band") !== "0",
    old: read("old") !== "0",
    wide: read("wide") === "1",
    range: range && (!range[2] || Number(range[1]) < Number(range[2]))
      ? [Number(range[1]), range[2] ? Number(range[2]) : null] : null,
  };
}

/** @param {View} view @param {boolean} [step] */
function toAddress(view, step = false) {
  write({
    x: view.x === "step" ? null : view.x,
    smooth: view.smooth || null,
    logx: view.logx,
    logy: view.logy,
    band: view.band ? null : "0",
    old: view.old ? null : "0",
    wide: view.wide,
    range: view.range && `${view.range[0]}-${view.range[1] ?? ""}`,
  }, { step });
}

/** @type {[View["x"], string][]} */
const AXES = [["step", "step"], ["tokens", "tokens"], ["time", "time"], ["flops", "FLOPs"]];
/** @type {["logx" | "logy" | "band" | "old" | "wide", string, string][]} */
const TOGGLES = [
  ["logx", "log x", "Logarithmic x axis"], ["logy", "log y", "Logarithmic y axis"],
  ["band", "band", "The range of all points that a drawn point represents"],
  ["old", "superseded", "Points of earlier attempts that a resume replaced"], ["wide", "wide", "Larger charts"],
];

/**
 * @param {View} view changed in place
 * @param {(change: "data" | "look") => void} onChange "data" if points must be fetched again
 * @param {HTMLElement[]} tools of other modules, in the same line
 * @param {boolean} several whether it has the curves of several runs, without those of earlier attempts
 * @param {AbortSignal} signal of the end of its page or tab
 * @returns {{element: HTMLElement, show: () => void, offer: (runs: Counted[]) => void}}
 *   call `show` after other code has changed `view`, and `offer` with the runs that are drawn
 */
export function toolbar(view, onChange, tools, several, signal) {
  const element = h("div.toolbar", { role: "toolbar", "aria-label": "Charts" });
  /** @type {Counted[]} */
  let drawn = [];
  /** @param {Partial<View>} changes @param {"data" | "look"} kind */
  const set = (changes, kind) => {
    Object.assign(view, changes);
    toAddress(view);
    draw();
    onChange(kind);
  };
  const axis = (/** @type {(typeof AXES)[number]} */ [x, label]) => {
    const why = whyNot(x, drawn);
    const props = { key: x, type: "button", "aria-pressed": String(x === view.x), disabled: why !== null, title: why };
    return h("button", { ...props, onclick: () => set({ x }, "data") }, label);
  };
  const toggle = (/** @type {(typeof TOGGLES)[number]} */ [key, label, title]) => h("button", {
    type: "button", "data-key": key, title, "aria-pressed": String(view[key]),
    onclick: () => set({ [key]: !view[key] }, key === "old" ? "data" : "look"),
  }, label);
  const reset = (/** @type {[number, number | null]} */ [first, last]) => {
    const steps = `steps ${integer(first)} to ${last === null ? "now" : integer(last)}`;
    const props = { key: "reset", type: "button", title: steps, "aria-label": "Show all steps" };
    return h("button", { ...props, onclick: () => set({ range: null }, "data") }, (
      view.x === "step" ? `${steps} ×` : "zoomed ×"
    ));
  };
  const draw = () => fill(
    element,
    h("span.field", {}, "x", h("span.segments", {}, AXES.map(axis))),
    h("label.field", {}, "smooth", input({
      type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": "Smoothing", value: view.smooth,
      oninput: (/** @type {any} */ { target }) => fill(target.nextElementSibling, target.value),
      onchange: (/** @type {any} */ { target }) => set({ smooth: Number(target.value) }, "data"),
    }), h("output", {}, view.smooth || "off")),
    view.range && reset(view.range),
    tools.map(keep),
    h("details.menu", {}, h("summary", {}, "Chart view"), h(
      "div.menu-list", {}, TOGGLES.filter(([key]) => !several || key !== "old").map(toggle),
      h("button", { type: "button", onclick: () => print() }, "Print"),
    )),
  );
  draw();
  addEventListener("popstate", () => {
    Object.assign(view, viewFromAddress());
    view.old &&= !several;
    draw();
    onChange("data");
  }, { signal });
  return {
    element,
    offer(runs) {
      drawn = runs;
      draw();
    },
    show() {
      toAddress(view, true);
      draw();
    },
  };
}

/**
 * @typedef {object} Own what one chart has for itself
 * @property {boolean} [log] whether the y axis is logarithmic; undefined: as the toolbar has it
 * @property {boolean} [all] outliers inside
 * @property {boolean} [heat] a row for each line, its values as colours
 * @property {[number, number] | null} [range] of y
 */

/** @param {string} text @returns {[number, number] | null | undefined} undefined if it is no range */
export function rangeOf(text) {
  if (!text.trim()) return null;
  const [low, high, ...rest] = text.split(/\.\.|\s+to\s+|,/).map((one) => (one.trim() ? Number(one) : NaN));
  return !rest.length && low < high ? [low, high] : undefined;
}

/**
 * Read what charts have for themselves from the address: `train/loss:log,grad_norm:all:0..5,a - b:linear`.
 *
 * @param {string | null} text
 * @returns {Map<string, Own>}
 */
export function ownFromAddress(text) {
  /** @type {Map<string, Own>} */
  const found = new Map();
  for (const part of (text ?? "").split(",").filter(Boolean)) {
    const [written, ...words] = part.split(":");
    const name = written.replace(/%(25|2C|3A)/gi, decodeURIComponent);
    const range = words.map(rangeOf).find((one) => one);
    found.set(name, {
      log: words.includes("log") || (words.includes("linear") ? false : undefined), all: words.includes("all"),
      heat: words.includes("heat"),
      range: range ?? null,
    });
  }
  return found;
}

/** @param {Map<string, Own>} own */
export const ownToAddress = (own) =>
  [...own]
    .map(([name, { log, all, heat, range }]) => [
      name.replace(/[%,:]/g, encodeURIComponent), log ? "log" : log === false && "linear", all && "all", heat && "heat",
      range && range.join(".."),
    ].filter(Boolean).join(":"))
    .filter((text) => text.includes(":"))
    .join(",");
