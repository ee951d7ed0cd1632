/** The menu of one chart: its scale, its range, full screen, and its data as files. */

import { checkbox, h } from "../dom.js";
import { toast } from "../notices.js";
import { isComputed } from "./expression.js";
import { rangeOf } from "./toolbar.js";
/** @import { Chart } from "./chart.js" */
/** @import { Own } from "./toolbar.js" */

/** @param {Blob} content @param {string} name */
function save(content, name) {
  const address = URL.createObjectURL(content);
  const link = /** @type {HTMLAnchorElement} */ (h("a", { href: address, download: name }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
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

/**
 * @param {Chart} chart
 * @param {Own} own
 * @param {(own: Own) => void} onChange
 */
export function itemsOf(chart, own, onChange) {
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
  );
}
