/** Search a whole log on the server: count its matches, and walk through them. */

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { integer } from "../format.js";
import { message } from "../notices.js";

// eslint-disable-next-line no-control-regex -- escape sequences begin with a control character
const ANSI = /\u001b\[[0-9;?]*[A-Za-z]/g;

/** Remove colours from a line, and the text that carriage returns overwrite. @param {string} line */
export const shown = (line) => line.replace(ANSI, "").replace(/\r$/, "").split("\r").at(-1) ?? "";

const ERROR = /\b(error|exception|traceback|out of memory|killed)\b/i;
/** The end of a traceback: the class of the exception, of any package. */
const RAISED = /^(\[rank\d+\]: ?)?[\w.]*(Error|Exception|Interrupt)(:|$)/;

/** @param {string} line */
export const isError = (line) => ERROR.test(line) || RAISED.test(line);

/**
 * Return whether the next line overwrites this one: tqdm moves the cursor up after each update of an inner bar.
 *
 * @param {string} line as it came
 */
export const overwritten = (line) => line.endsWith("\u001b[A");

/** Return the step that a line names; NaN for none. @param {string} line */
const stepIn = (line) => Number(/\bstep[\s:=]*([\d,]+)/i.exec(line)?.[1].replaceAll(",", "") ?? NaN);

/**
 * Return at which byte of a log its last line of a text is, or the first line of a step, or of the newest one before.
 *
 * @param {string} path of the log
 * @param {number} attempt
 * @param {number | string} where
 * @returns {Promise<number | null>} null if it is not there
 */
export async function offsetOf(path, attempt, where) {
  const text = typeof where === "string" ? where : "step";
  let [rank, best] = [-1, null];
  for (let offset = 0; offset !== null;) {
    const found = await get(`${path}/search`, { text, attempt, offset, limit: MOST });
    for (const line of found.lines) {
      // An error that begins a line is that of the program; a launcher tells it once more.
      const begins = Number(line.text.replace(/^\[\w+\]: ?/, "").startsWith(text));
      const named = typeof where === "string" ? begins : stepIn(line.text);
      const better = typeof where === "string" ? named >= rank : named > rank && named <= where;
      if (better) [rank, best] = [named, line.offset];
    }
    offset = found.next_offset;
  }
  return best;
}

const MOST = 10_000;
const PAUSE_MS = 300;

/**
 * @typedef {object} Searched
 * @property {string} text
 * @property {string} path of the log: `/runs/x/logs/rank-0.log`
 * @property {number} attempt
 */

export class LogSearch {
  /** @param {(offset: number) => void | Promise<void>} jump shows the line at this byte */
  constructor(jump) {
    this.jump = jump;
    /** @type {number[]} offsets of the lines that match */
    this.hits = [];
    this.at = -1;
    this.more = false;
    /** @type {Searched | null} */
    this.searched = null;
    this.count = h("span.dim", { role: "status" });
    const button = (/** @type {string} */ label, /** @type {string} */ sign, /** @type {number} */ by) =>
      h("button", { type: "button", "aria-label": label, title: label, onclick: () => this.step(by) }, sign);
    this.element = h(
      "span.log-search", { hidden: true }, button("Previous match", "↑", -1), button("Next match", "↓", 1), this.count,
    );
  }

  /**
   * Search soon, unless something else is searched before.
   *
   * @param {Searched | null} wanted null: nothing is searched
   */
  set(wanted) {
    clearTimeout(this.timer);
    this.searched = wanted;
    this.hits = [];
    this.at = -1;
    this.element.hidden = !wanted;
    fill(this.count, wanted && "…");
    if (wanted) this.timer = setTimeout(() => this.#search(wanted), PAUSE_MS);
  }

  /** @param {Searched} wanted */
  async #search(wanted) {
    try {
      const found = await get(`${wanted.path}/search`, { text: wanted.text, attempt: wanted.attempt, limit: MOST });
      if (this.searched !== wanted) return;
      this.hits = found.lines.map((/** @type {{offset: number}} */ line) => line.offset);
      this.more = found.next_offset !== null;
      this.#show();
    } catch (error) {
      if (this.searched === wanted) fill(this.count, message(error));
    }
  }

  /** Go to the next or the previous match; after the last comes the first. @param {number} by 1 or -1 */
  step(by) {
    if (!this.hits.length || !this.searched) return;
    const from = this.at < 0 && by < 0 ? 0 : this.at;
    this.at = (from + by + this.hits.length) % this.hits.length;
    this.#show();
    this.jump(this.hits[this.at]);
  }

  #show() {
    const total = `${integer(this.hits.length)}${this.more ? "+" : ""}`;
    if (!this.hits.length) fill(this.count, "no match in the whole log");
    else fill(this.count, this.at < 0 ? `${total} in the whole log` : `${integer(this.at + 1)} of ${total}`);
  }
}
