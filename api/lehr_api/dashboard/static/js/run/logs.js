/** The logs of a run by attempt and rank, live and searchable. */

import { get } from "../api.js";
import { fill, h, mount, throttled } from "../dom.js";
import { bytes, integer } from "../format.js";
import { showFailure } from "../notices.js";
import { read, write } from "../urlstate.js";
import { shown } from "./terminal.js";

/**
 * @typedef {import("../types.js").RunDetail} RunDetail
 * @typedef {import("../types.js").LogStream} LogStream
 * @typedef {import("../types.js").LogChunk} LogChunk
 */

const LINES = 5000;
const FIRST_LINES = 500;
const TAIL_LINES = 40;
const CHUNK = 256 * 1024;
const ERROR = /\b(error|exception|traceback|out of memory|killed)\b/i;

/** @param {LogStream} stream */
const keyOf = (stream) => `${stream.attempt}/${stream.name}`;

export class LogView {
  /**
   * @param {HTMLElement} place
   * @param {RunDetail} run
   * @param {{tail?: boolean}} [options] `tail`: show only the last lines of rank 0
   */
  constructor(place, run, options = {}) {
    const tail = options.tail ?? false;
    this.place = place;
    this.runId = run.id;
    this.tail = tail;
    /** @type {LogStream[]} */
    this.streams = [];
    this.attempt = run.attempt;
    this.chosen = tail ? null : read("log");
    this.search = tail ? "" : (read("find") ?? "");
    this.only = !tail && read("only") === "1";
    this.next = 0;
    this.first = 0;
    this.generation = 0;
    /** @type {string[]} as they came, so that their length in bytes is known */
    this.lines = [];
    /** The incomplete last line. */
    this.rest = "";
    this.refresh = throttled(() => this.#refresh(), 1000);
    this.follow = true;
    this.note = h("span.dim");
    this.pre = h(tail ? "pre.log.tail" : "pre.log", { tabindex: "0", role: "log", "aria-label": "Log", "aria-live": "off" });
    this.#build();
    this.refresh();
  }

  #build() {
    const pre = this.pre;
    pre.addEventListener("scroll", () => {
      this.follow = pre.scrollTop + pre.clientHeight > pre.scrollHeight - 24;
    });
    if (this.tail) {
      mount(this.place, this.note, this.pre);
      return;
    }
    this.select = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": "Log", onchange: () => this.choose(this.select?.value ?? "") }));
    this.input = /** @type {HTMLInputElement} */ (
      h("input", { type: "search", placeholder: "search in these lines", "aria-label": "Search in the log", value: this.search, oninput: () => {
        this.search = this.input?.value ?? "";
        write({ find: this.search });
        this.#draw();
      } })
    );
    const only = h("input", { type: "checkbox", checked: this.only, onchange: (/** @type {Event} */ event) => {
      this.only = /** @type {HTMLInputElement} */ (event.target).checked;
      write({ only: this.only });
      this.#draw();
    } });
    this.earlier = h("button", { type: "button", hidden: true, onclick: () => this.#loadEarlier() }, "Earlier lines");
    mount(this.place, h("div.log-bar", {}, this.select, this.input, h("label.check", {}, only, "only lines that match"), this.earlier, this.note), this.pre);
  }

  /** @param {RunDetail} run */
  run(run) {
    if (run.attempt === this.attempt) return;
    this.attempt = run.attempt;
    this.refresh();
  }

  /** @param {{name: string, attempt?: number}} change */
  grew(change) {
    const [attempt, name] = this.current?.split("/") ?? [];
    if (!this.current || (change.name === name && (change.attempt === undefined || String(change.attempt) === attempt))) this.refresh();
    else if (!this.streams.some((stream) => stream.name === change.name && (change.attempt ?? stream.attempt) === stream.attempt)) this.refresh();
  }

  /** @param {string} key */
  choose(key) {
    this.chosen = key;
    write({ log: key });
    this.refresh();
  }

  async #refresh() {
    try {
      this.streams = await get(`/runs/${this.runId}/logs`);
      if (!this.streams.length) {
        this.note.textContent = "No log yet. It appears when the run starts.";
        return;
      }
      const newest = Math.max(...this.streams.map((stream) => stream.attempt));
      const usual = this.streams.find((one) => one.attempt === newest && one.name === "rank-0.log") ?? this.streams.find((one) => one.attempt === newest);
      const chosen = this.streams.find((one) => keyOf(one) === this.chosen) ?? usual ?? this.streams[0];
      this.#options(chosen);
      if (keyOf(chosen) === this.current) await this.#more(chosen);
      else await this.#start(chosen);
    } catch (error) {
      if (!this.lines.length) showFailure(this.place, error);
    }
  }

  /** @param {LogStream} chosen */
  #options(chosen) {
    if (!this.select) return;
    const options = this.streams.map((stream) => h("option", { value: keyOf(stream) }, `attempt ${stream.attempt} · ${stream.name} · ${bytes(stream.size_bytes)}${stream.cut ? ", cut" : ""}`));
    fill(this.select, options);
    this.select.value = keyOf(chosen);
  }

  /** @param {LogStream} stream */
  async #start(stream) {
    this.generation += 1;
    const chunk = await this.#fetch(stream, { tail: this.tail ? TAIL_LINES : FIRST_LINES });
    this.current = keyOf(stream);
    this.first = chunk.offset;
    this.next = chunk.next_offset;
    this.lines = [];
    this.rest = "";
    this.follow = true;
    this.#take(chunk.text);
    this.#draw();
  }

  /** @param {LogStream} stream */
  async #more(stream) {
    let size = stream.size_bytes;
    while (this.next < size) {
      const generation = this.generation;
      const chunk = await this.#fetch(stream, { offset: this.next, limit: CHUNK });
      if (generation !== this.generation || chunk.next_offset <= this.next) return;
      this.next = chunk.next_offset;
      size = chunk.size_bytes;
      this.#append(this.#take(chunk.text));
    }
  }

  async #loadEarlier() {
    const stream = this.streams.find((one) => keyOf(one) === this.current);
    if (!stream || !this.first) return;
    const offset = Math.max(0, this.first - CHUNK);
    const chunk = await this.#fetch(stream, { offset, limit: this.first - offset });
    // Begin at the start of a line, unless this is the beginning of the file.
    const cut = offset === 0 ? 0 : chunk.text.indexOf("\n") + 1;
    const text = chunk.text.slice(cut);
    this.first = offset + new TextEncoder().encode(chunk.text.slice(0, cut)).length;
    this.lines = [...text.split("\n").slice(0, -1), ...this.lines];
    this.follow = false;
    this.#draw();
  }

  /**
   * @param {LogStream} stream
   * @param {Record<string, number>} part
   * @returns {Promise<LogChunk>}
   */
  #fetch(stream, part) {
    return get(`/runs/${this.runId}/logs/${stream.name}`, { attempt: stream.attempt, ...part });
  }

  /** @param {string} text @returns {string[]} the lines that are now complete */
  #take(text) {
    const parts = (this.rest + text).split("\n");
    this.rest = parts.pop() ?? "";
    this.lines.push(...parts);
    return parts;
  }

  /**
   * @param {string} raw
   * @returns {HTMLElement[]} empty if the line does not match the search
   */
  #line(raw) {
    const line = shown(raw);
    const needle = this.search.toLowerCase();
    const at = needle ? line.toLowerCase().indexOf(needle) : -1;
    if (this.only && needle && at < 0) return [];
    const kind = ERROR.test(line) ? "span.err" : "span";
    if (at < 0) return [h(kind, {}, `${line}\n`)];
    return [h(kind, {}, line.slice(0, at), h("mark", {}, line.slice(at, at + needle.length)), `${line.slice(at + needle.length)}\n`)];
  }

  /** @param {string[]} fresh */
  #append(fresh) {
    if (this.lines.length > 2 * LINES) {
      this.lines = this.lines.slice(-LINES);
      this.first = this.next - new TextEncoder().encode(`${this.lines.join("\n")}\n${this.rest}`).length;
      this.#draw();
      return;
    }
    const pre = this.pre;
    this.partial?.remove();
    pre.append(...fresh.flatMap((line) => this.#line(line)));
    this.#end();
  }

  #draw() {
    const pre = this.pre;
    pre.replaceChildren(...this.lines.flatMap((line) => this.#line(line)));
    this.#end();
  }

  #end() {
    const pre = this.pre;
    this.partial = this.rest && !(this.only && this.search) ? h("span.dim", {}, shown(this.rest)) : null;
    if (this.partial) pre.append(this.partial);
    if (this.follow) pre.scrollTop = pre.scrollHeight;
    if (this.earlier) this.earlier.hidden = this.first === 0;
    if (this.tail) {
      this.note.textContent = "";
      return;
    }
    const matches = this.search ? this.lines.filter((line) => line.toLowerCase().includes(this.search.toLowerCase())).length : null;
    this.note.textContent = matches === null ? `${integer(this.lines.length)} lines` : `${integer(matches)} of ${integer(this.lines.length)} lines match`;
  }
}

/**
 * @param {HTMLElement} place
 * @param {RunDetail} run
 * @returns {import("./tabs.js").OpenTab}
 */
export function openLogs(place, run) {
  const view = new LogView(place, run);
  return { run: (next) => view.run(next), log: (change) => view.grew(change), catchUp: () => view.refresh() };
}
