/** What programs have logged beside numbers, by step: images, tables, histograms, files. */

import { get, url } from "../api.js";
import { dataTable, fill, h, s } from "../dom.js";
import * as f from "../format.js";
import { message } from "../notices.js";
import { keep } from "../patch.js";

/**
 * @typedef {import("../types.js").MediaView} MediaView
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
    rows.length > ROWS && h("p.hint", {}, `The first ${f.integer(ROWS)} of ${f.integer(rows.length)} rows.`),
  ];
}

/** @param {{counts: number[], edges: number[]}} histogram @param {string} label */
function drawHistogram({ counts, edges }, label) {
  const [each, most] = [WIDTH / counts.length, Math.max(...counts) || 1];
  const bars = counts.map((count, i) => {
    const height = (HEIGHT * count) / most;
    const words = `${f.number(edges[i])} to ${f.number(edges[i + 1])}: ${f.number(count)}`;
    return s("rect", { x: i * each, y: HEIGHT - height, width: each * 0.9, height }, s("title", {}, words));
  });
  const total = f.integer(counts.reduce((sum, count) => sum + count, 0));
  const range = `${f.number(edges[0])} to ${f.number(edges[counts.length])}`;
  return [
    s("svg", { class: "histogram", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, bars),
    h("div.dim", {}, `${range}, ${total} values, highest bar ${f.integer(most)}`),
  ];
}

/** Sections of what runs have logged, each with a slider over its steps; runs side by side. */
export class MediaBoard {
  constructor() {
    this.element = keep(h("div"));
    /** @type {Column[]} */
    this.columns = [];
    /** @type {Map<string, number>} by name */
    this.chosen = new Map();
    /** @type {Map<string, any>} by address; undefined until it has arrived */
    this.contents = new Map();
  }

  /** @param {Column[]} columns */
  draw(columns) {
    this.columns = columns;
    const names = new Set(columns.flatMap(({ items }) => items.map((item) => item.name)));
    fill(this.element, [...names].map((name) => this.#section(name)));
  }

  /** @param {string} name */
  #section(name) {
    const { steps, index } = stepsOf(this.columns, name, this.chosen.get(name));
    const oninput = (/** @type {any} */ { target }) => {
      this.chosen.set(name, steps[Number(target.value)]);
      this.draw(this.columns);
    };
    const slider = h("input", { type: "range", min: 0, max: steps.length - 1, value: index, oninput });
    const shown = this.columns.map(({ id, head, items }) => {
      const here = items.filter((item) => item.name === name && item.step === steps[index]);
      return h(
        "div.media-run", { key: id }, head && h("div", {}, head),
        here.length ? here.map((item) => this.#item(id, item)) : h("p.hint", {}, "Nothing at this step."),
      );
    });
    return h(
      "section.media", { key: name },
      h(
        "div.bar", {}, h("h3", {}, name), h("label.field", {}, "step", slider),
        h("output", {}, f.integer(steps[index])),
      ),
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
    const link = h("p", {}, h("a", { href: address, download }, download), h("span.dim", {}, ` ${f.bytes(item.size)}`));
    return h("div", { key: address }, !isFile && this.#content(address, path, place, item.type, label), link);
  }

  /** @param {string} address @param {string} path @param {any} place @param {string} type @param {string} label */
  #content(address, path, place, type, label) {
    if (!this.contents.has(address)) {
      this.contents.set(address, undefined);
      get(path, place).catch((error) => error).then((content) => {
        this.contents.set(address, content);
        this.draw(this.columns);
      });
    }
    const content = this.contents.get(address);
    if (content === undefined) return h("p.hint", {}, "Loading");
    try {
      return type === "table" ? drawTable(content, label) : drawHistogram(content, label);
    } catch {
      return h("p.hint", {}, content instanceof Error ? message(content) : "It cannot be shown.");
    }
  }
}
