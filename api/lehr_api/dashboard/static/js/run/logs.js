/** The logs of a run by attempt and rank, live and searchable. */

import { get, url } from "../api.js";
import { checkbox, fill, h, input, mount, throttled } from "../dom.js";
import { bytes, integer } from "../format.js";
import { showFailure, toast } from "../notices.js";
import { keep } from "../patch.js";
import { read, write } from "../urlstate.js";
import { isError, LogSearch, offsetOf, overwritten, shown } from "./log_search.js";
/** @import { LogChunk, LogStream, RunDetail } from "../types.js" */

const LINES = 5000;
const FIRST_LINES = 500;
const TAIL_LINES = 40;
const CHUNK = 256 * 1024;
const MAIN = "rank-0.log";

/** @param {string} text */
const lengthOf = (text) => new TextEncoder().encode(text).length;

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
    /** Whether an earlier part of the log is shown than its end. */
    this.away = false;
    /** @type {(HTMLElement | null)[]} the element of each line that is shown */
    this.rows = [];
    this.walk = new LogSearch((offset) => this.jump(offset));
    /** The step or text whose line is to be shown. @type {number | string | null} */
    this.sought = null;
    /** The incomplete last line. */
    this.rest = "";
    this.refresh = throttled(() => this.#refresh(), 1000);
    this.follow = true;
    /** What is said of the log. */
    this.said = "";
    this.bar = h(tail ? "div" : "div.log-bar");
    this.pre = h(
      tail ? "pre.log.tail" : "pre.log", { tabindex: "0", role: "log", "aria-label": "Log", "aria-live": "off" },
    );
    this.pre.addEventListener("scroll", () => {
      this.follow = this.pre.scrollTop + this.pre.clientHeight > this.pre.scrollHeight - 24;
    });
    mount(place, this.bar, this.pre);
    this.#drawBar();
    this.refresh();
  }

  /** Draw what is above the lines. */
  #drawBar() {
    const stream = this.#shownStream();
    const field = () => input({
      type: "search", placeholder: "search the whole log", "aria-label": "Search in the log", value: this.search,
      oninput: (/** @type {any} */ { target }) => {
        this.search = target.value;
        write({ find: this.search });
        this.#draw();
        this.#searchAll();
      },
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        this.walk.step(event.shiftKey ? -1 : 1);
      },
    });
    const only = () => checkbox(this.only, (yes) => {
      this.only = yes;
      write({ only: yes });
      this.#draw();
    });
    fill(this.bar, !this.tail && [
      h("select", {
        "aria-label": "Log", value: this.current,
        onchange: (/** @type {any} */ { target }) => this.choose(target.value),
      }, this.streams.map((one) => h(
        "option", { value: keyOf(one) },
        `attempt ${one.attempt} · ${one.name} · ${bytes(one.size_bytes)}${one.cut ? ", cut" : ""}`,
      ))),
      field(), h("label.check", {}, only(), "only lines that match"), keep(this.walk.element),
      h("button", { type: "button", hidden: this.first === 0, onclick: () => this.#loadEarlier() }, "Earlier lines"),
      h("button", { type: "button", hidden: !this.away, onclick: () => stream && this.#start(stream) }, "Latest lines"),
      stream && h("a.button", {
        download: "",
        href: url(`/runs/${this.runId}/logs/${encodeURIComponent(stream.name)}/text`, { attempt: stream.attempt }),
      }, "Download"),
    ], h("span.dim", {}, this.said));
  }

  /** @param {RunDetail} run */
  run(run) {
    if (run.attempt === this.attempt) return;
    this.attempt = run.attempt;
    this.refresh();
  }

  /** @param {{name: string, attempt?: number}} change */
  grew(change) {
    const isIt = (/** @type {LogStream} */ { name, attempt }) => (
      change.name === name && (change.attempt ?? attempt) === attempt
    );
    const current = this.#shownStream();
    if (!current || isIt(current) || !this.streams.some(isIt)) this.refresh();
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
        this.said = "No log yet. It appears when the run starts.";
        this.#drawBar();
        this.pre.hidden = true;
        return;
      }
      this.pre.hidden = false;
      const newest = Math.max(...this.streams.map((stream) => stream.attempt));
      const usual = this.streams.find((one) => one.attempt === newest && one.name === MAIN)
        ?? this.streams.find((one) => one.attempt === newest);
      const chosen = this.streams.find((one) => keyOf(one) === this.chosen) ?? usual ?? this.streams[0];
      if (keyOf(chosen) === this.current) await (this.away ? null : this.#more(chosen));
      else await this.#start(chosen);
      if (this.sought !== null) await this.#seek(this.sought);
    } catch (error) {
      if (!this.lines.length) showFailure(this.place, error);
    }
  }

  /** Show the line of a step, or the last one with a text. @param {number | string} where */
  async #seek(where) {
    this.sought = null;
    const rank = (/** @type {LogStream} */ { attempt, name }) => 2 * attempt + Number(name === MAIN);
    const streams = [...this.streams].sort((a, b) => rank(b) - rank(a));
    // A long error is cut, or its message stands on the line after its name.
    for (const one of typeof where === "string" ? [where.slice(0, 200), where.split(":")[0]] : [where]) {
      for (const stream of streams) {
        const offset = await offsetOf(`/runs/${this.runId}/logs/${stream.name}`, stream.attempt, one);
        if (offset === null) continue;
        this.chosen = keyOf(stream);
        if (this.chosen !== this.current) await this.#start(stream);
        await this.jump(offset);
        /** @type {HTMLElement | null} */ (this.pre.querySelector(".hit-now"))?.focus({ preventScroll: true });
        return;
      }
    }
    toast(`No log has ${typeof where === "string" ? "this line" : `a line of step ${integer(where)}`}.`);
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
    this.away = false;
    this.#take(chunk.text);
    this.#draw();
    this.#searchAll();
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

  #shownStream() {
    return this.streams.find((one) => keyOf(one) === this.current);
  }

  #searchAll() {
    const stream = this.#shownStream();
    this.walk.set(
      this.search && stream && !this.tail
        ? { text: this.search, path: `/runs/${this.runId}/logs/${stream.name}`, attempt: stream.attempt }
        : null
    );
  }

  /** Show the line at a byte of the log, and the lines around it. @param {number} offset */
  async jump(offset) {
    const stream = this.#shownStream();
    if (!stream) return;
    const begin = Math.max(0, offset - CHUNK / 4);
    const before = begin < offset ? await this.#fetch(stream, { offset: begin, limit: offset - begin }) : null;
    const after = await this.#fetch(stream, { offset, limit: CHUNK });
    const cut = !before || begin === 0 ? 0 : before.text.indexOf("\n") + 1;
    const earlier = (before?.text ?? "").slice(cut).split("\n").slice(0, -1);
    this.generation += 1;
    this.first = begin + lengthOf((before?.text ?? "").slice(0, cut));
    this.next = after.next_offset;
    this.rest = "";
    const index = earlier.length;
    this.lines = earlier;
    this.#take(after.text);
    this.away = this.next < after.size_bytes;
    this.follow = false;
    this.#draw();
    const row = this.rows[index] ?? null;
    row?.classList.add("hit-now");
    row?.setAttribute("tabindex", "-1");
    row?.scrollIntoView({ block: "center" });
  }

  async #loadEarlier() {
    const stream = this.#shownStream();
    if (!stream || !this.first) return;
    const offset = Math.max(0, this.first - CHUNK);
    const chunk = await this.#fetch(stream, { offset, limit: this.first - offset });
    // Begin at the start of a line, unless this is the beginning of the file.
    const cut = offset === 0 ? 0 : chunk.text.indexOf("\n") + 1;
    const text = chunk.text.slice(cut);
    this.first = offset + lengthOf(chunk.text.slice(0, cut));
    this.lines = [...text.split("\n").slice(0, -1), ...this.lines];
    this.follow = false;
    this.#draw();
  }

  /** @param {LogStream} stream @param {Record<string, number>} part @returns {Promise<LogChunk>} */
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

  /** @param {string} raw @returns {HTMLElement[]} empty if the line was overwritten, or does not match the search */
  #line(raw) {
    if (overwritten(raw)) return [];
    const line = shown(raw);
    const needle = this.search.toLowerCase();
    const at = needle ? line.toLowerCase().indexOf(needle) : -1;
    if (this.only && needle && at < 0) return [];
    const kind = isError(line) ? "span.bad" : "span";
    if (at < 0) return [h(kind, {}, `${line}\n`)];
    return [h(
      kind, {}, line.slice(0, at), h("mark", {}, line.slice(at, at + needle.length)),
      `${line.slice(at + needle.length)}\n`,
    )];
  }

  /** @param {string[]} fresh */
  #append(fresh) {
    if (this.lines.length > 2 * LINES) {
      this.lines = this.lines.slice(-LINES);
      this.first = this.next - lengthOf(`${this.lines.join("\n")}\n${this.rest}`);
      this.#draw();
      return;
    }
    const pre = this.pre;
    this.partial?.remove();
    pre.append(...this.#rowsOf(fresh));
    this.#end();
  }

  /** @param {string[]} lines @returns {HTMLElement[]} those that are shown */
  #rowsOf(lines) {
    const made = lines.map((line) => this.#line(line)[0] ?? null);
    this.rows.push(...made);
    return made.filter((row) => row !== null);
  }

  #draw() {
    const pre = this.pre;
    this.rows = [];
    pre.replaceChildren(...this.#rowsOf(this.lines));
    this.#end();
  }

  #end() {
    const pre = this.pre;
    this.partial = this.rest && !(this.only && this.search) ? h("span.dim", {}, shown(this.rest)) : null;
    if (this.partial) pre.append(this.partial);
    if (this.follow) pre.scrollTop = pre.scrollHeight;
    const needle = this.search.toLowerCase();
    const matches = () => this.lines.filter((line) => line.toLowerCase().includes(needle)).length;
    const count = integer(this.lines.length);
    this.said = this.tail ? "" : needle ? `${integer(matches())} of ${count} lines match` : `${count} lines`;
    this.#drawBar();
  }
}

/** @param {HTMLElement} place @param {RunDetail} run @returns {import("./tabs.js").OpenTab} */
export function openLogs(place, run) {
  const view = new LogView(place, run);
  return {
    run: (next) => view.run(next), log: (change) => view.grew(change), catchUp: () => view.refresh(),
    at: (where) => {
      view.sought = where;
      view.refresh(true);
    },
  };
}
