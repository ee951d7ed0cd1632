/** The menu of one chart: its scale, its range, full screen, and its data as files. */

import { checkbox, h } from "../dom.js";
import { toast } from "../notices.js";
import { isComputed } from "./expression.js";

/**
 * @typedef {import("./chart.js").Chart} Chart
 *
 * @typedef {object} Own what one chart has for itself
 * @property {boolean} [log] whether the y axis is logarithmic; undefined: as the toolbar has it
 * @property {boolean} [all] outliers inside
 * @property {boolean} [heat] a row for each line, its values as colours
 * @property {[number, number] | null} [range] of y
 */

/** @param {Blob | string} content a file, or its data address @param {string} name */
function save(content, name) {
  const address = typeof content === "string" ? content : URL.createObjectURL(content);
  const link = /** @type {HTMLAnchorElement} */ (h("a", { href: address, download: name }));
  link.click();
  if (typeof content !== "string") setTimeout(() => URL.revokeObjectURL(address), 1000);
}

/** @param {Chart} chart */
const fileName = (chart) => chart.name.replace(/[^\w.-]+/g, "-");

/** @param {Chart} chart */
function saveSvg(chart) {
  const file = chart.file();
  if (file) save(new Blob([file.text], { type: "image/svg+xml" }), `${fileName(chart)}.svg`);
}

/** @param {Chart} chart */
async function savePng(chart) {
  const file = chart.file();
  if (!file) return;
  const image = new Image();
  image.src = `data:image/svg+xml,${encodeURIComponent(file.text)}`;
  await image.decode();
  const canvas = /** @type {HTMLCanvasElement} */ (h("canvas", { width: 2 * image.width, height: 2 * image.height }));
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => blob && save(blob, `${fileName(chart)}.png`));
}

/** Return the drawn points as CSV: a row for each point of each run. @param {Chart} chart */
export function csvOf(chart) {
  const cell = (/** @type {string | number} */ v) => (
    /[",\n]/.test(String(v)) ? `"${String(v).replaceAll('"', '""')}"` : String(v)
  );
  const rows = chart.lines.flatMap(({ run, label, curve }) => curve.step.map(
    (step, i) => [run, label, step, curve.x[i], curve.y[i]].map(cell).join(",")
  ));
  return ["run,label,step," + `x_${chart.look.x},${cell(chart.name)}`, ...rows].join("\n");
}

/** @param {string} text @returns {[number, number] | null | undefined} undefined if it is no range */
export function rangeOf(text) {
  if (!text.trim()) return null;
  const [low, high, ...rest] = text.split(/\.\.|\s+to\s+|,/).map((one) => (one.trim() ? Number(one) : NaN));
  return !rest.length && low < high ? [low, high] : undefined;
}

/**
 * @param {Chart} chart
 * @param {Own} own
 * @param {(own: Own) => void} onChange
 * @param {boolean} [open] whether it needs its items: a page can have hundreds of charts
 */
export function menuOf(chart, own, onChange, open = false) {
  const item = (/** @type {string} */ text, /** @type {() => unknown} */ act) =>
    h("button.quiet", { key: text, type: "button", onclick: act }, text);
  const setRange = (/** @type {Event} */ event) => {
    const field = /** @type {HTMLInputElement} */ (event.target);
    const range = rangeOf(field.value);
    field.setAttribute("aria-invalid", String(range === undefined));
    if (range !== undefined) onChange({ ...own, range });
    else toast(`${field.value} is not a range. Write the lowest and the highest value: 2.5..4`, { bad: true });
  };
  return h(
    "details.menu.chart-menu",
    { key: "menu", ontoggle: (/** @type {any} */ { target }) => target.open && chart.setOwn(chart.own) },
    h("summary", { "aria-label": `Menu of ${chart.name}` }, "⋯"),
    open && h(
      "div.menu-list",
      {},
      h("label.check", {}, checkbox(own.log ?? false, (log) => onChange({ ...own, log })), "log y"),
      h("label.check", {}, checkbox(!own.all, (clipped) => onChange({ ...own, all: !clipped })), "clip outliers"),
      isComputed(chart.name)
        && h("label.check", {}, checkbox(own.heat ?? false, (heat) => onChange({ ...own, heat })), "heat map"),
      h("label.field", {}, "y", h("input", {
        type: "text", size: "10", value: own.range ? own.range.join("..") : "", placeholder: "2.5..4",
        "aria-label": "Range of y", onchange: setRange,
      })),
      item("Full screen", () => chart.element.requestFullscreen?.()),
      item("PNG", () => savePng(chart)),
      item("SVG", () => saveSvg(chart)),
      item("CSV", () => save(new Blob([csvOf(chart)], { type: "text/csv" }), `${fileName(chart)}.csv`)),
    ),
  );
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
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
    const name = decoded(written);
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
