/** What programs have logged beside numbers, by step: images, tables, histograms, files. */

import { get, url } from "../api.js";
import { dataTable, fill, h, s } from "../dom.js";
import * as f from "../format.js";
import { message } from "../notices.js";
import { keep } from "../patch.js";
/** @import { MediaView } from "../types.js" */

/**
 * @typedef {{id: string, head: import("../dom.js").Child, items: MediaView[]}} Column a run, and what it has logged
 */

const ROWS = 1000;
const [WIDTH, HEIGHT] = [320, 90];

/**
 * Return the steps that have something of a name, and the position of the chosen one: without a choice, the newest.
 *
 * @param {Column[]} columns
 * @param {string} name
 * @param {number} [chosen] if it is gone, the last step before it
 */
export function stepsOf(columns, name, chosen = Infinity) {
  const found = columns.flatMap(({ items }) => items.filter((item) => item.name === name).map((item) => item.step));
  const steps = [...new Set(found)].sort((a, b) => a - b);
  return { steps, index: Math.max(0, steps.filter((step) => step <= chosen).length - 1) };
}

/** @param {{columns: string[], rows: any[][]}} table @param {string} label */
function drawTable({ columns, rows }, label) {
  const cell = (/** @type {any} */ value) =>
    typeof value !== "number"
      ? h("td.wrap", {}, String(value ?? f.NONE))
      : h("td.num", {}, Number.isInteger(value) ? f.integer(value) : f.number(value));
  return [
    dataTable(
      label, columns.map((name) => h("th", { scope: "col" }, String(name))),
      rows.slice(0, ROWS).map((row) => h("tr", {}, row.map(cell))),
    ),
    rows.length > ROWS && hint(`The first ${f.integer(ROWS)} of ${f.integer(rows.length)} rows.`),
  ];
}

/** @param {{counts: number[], edges: number[]}} histogram @param {string} label */
function drawHistogram({ counts, edges }, label) {
  const [each, most] = [WIDTH / counts.length, Math.max(...counts) || 1];
  const range = (/** @type {number} */ i, j = i + 1) => `${f.number(edges[i])} to ${f.number(edges[j])}`;
  const bars = counts.map((count, i) => {
    const height = (HEIGHT * count) / most;
    const words = s("title", {}, `${range(i)}: ${f.number(count)}`);
    return s("rect", { x: i * each, y: HEIGHT - height, width: each * 0.9, height }, words);
  });
  const total = f.integer(counts.reduce((sum, count) => sum + count, 0));
  return [
    s("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, bars),
    h("div.dim", {}, `${range(0, counts.length)}, ${total} values, highest bar ${f.integer(most)}`),
  ];
}

/** @param {string} text */
const hint = (text) => h("p.hint", {}, text);

/** @param {MediaView} item @param {string} label @param {Promise<any>} content drawn when it arrives */
function drawn({ type }, label, content) {
  const place = keep(h("div", {}, hint("Loading")));
  content
    .then((value) => fill(place, type === "table" ? drawTable(value, label) : drawHistogram(value, label)))
    .catch((error) => fill(place, hint(error instanceof TypeError ? "It cannot be shown." : message(error))));
  return place;
}

/** Sections of what runs have logged, each with a slider over its steps; runs side by side. */
export class MediaBoard {
  element = keep(h("div"));
  /** @type {Map<string, number>} by name */
  chosen = new Map();
  /** @type {Map<string, Element>} by address */
  contents = new Map();

  /** @param {Column[]} columns */
  draw(columns) {
    const names = new Set(columns.flatMap(({ items }) => items.map((item) => item.name)));
    fill(this.element, [...names].map((name) => this.#section(columns, name)));
  }

  /** @param {Column[]} columns @param {string} name */
  #section(columns, name) {
    const { steps, index } = stepsOf(columns, name, this.chosen.get(name));
    const oninput = (/** @type {any} */ { target }) => {
      this.chosen.set(name, steps[Number(target.value)]);
      this.draw(columns);
    };
    const slider = h("input", { type: "range", min: 0, max: steps.length - 1, value: index, oninput });
    const shown = columns.map(({ id, head, items }) => {
      const here = items.filter((item) => item.name === name && item.step === steps[index]);
      const all = here.length ? here.map((item) => this.#item(id, item)) : hint("Nothing at this step.");
      return h("div.media-run", { key: id }, head && h("div", {}, head), all);
    });
    const step = h("label.field", {}, "step", slider);
    return h(
      "section.media", { key: name },
      h("div.bar", {}, h("h3", {}, name), step, h("output", {}, f.integer(steps[index]))),
      h("div.media-runs", {}, shown),
    );
  }

  /** @param {string} id @param {MediaView} item */
  #item(id, item) {
    const [path, place] = [`/runs/${id}/media/${item.attempt}`, { offset: item.offset, size: item.size }];
    const address = url(path, place);
    const label = item.caption || `${item.name} at step ${item.step}`;
    if (item.type === "image") {
      const image = h("img", { src: address, alt: label, loading: "lazy" });
      return h("figure", { key: address }, image, item.caption && h("figcaption", {}, item.caption));
    }
    const isFile = item.type === "file";
    const download = isFile ? label : `${item.name}.json`;
    const content = this.contents.get(address) ?? (isFile ? null : drawn(item, label, get(path, place)));
    if (content) this.contents.set(address, content);
    const link = h("p", {}, h("a", { href: address, download }, download), h("span.dim", {}, ` ${f.bytes(item.size)}`));
    return h("div", { key: address }, content, link);
  }
}
