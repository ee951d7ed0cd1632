/** Tabs. The URL keeps the choice; only the open tab fetches its module and data. */

import { fill, h, mount } from "../dom.js";
import { showFailure } from "../notices.js";
import { read, write } from "../urlstate.js";
/** @import { RunDetail } from "../types.js" */

/**
 * @typedef {object} OpenTab what an open tab gets
 * @property {(run: RunDetail) => void} [run]
 * @property {(latest: Record<string, import("../types.js").Latest>) => void} [metrics]
 * @property {(change: {name: string, size: number, attempt?: number}) => void} [log]
 * @property {(where: any) => void} [at] show what is at a step, or, in logs, has a text
 * @property {() => void} [catchUp]
 * @property {() => void} [close]
 *
 * @typedef {object} Tab
 * @property {string} key
 * @property {string} title
 * @property {(place: HTMLElement, run: RunDetail) => OpenTab | Promise<OpenTab>} open
 */

export class Tabs {
  /** @param {HTMLElement} bar @param {HTMLElement} place @param {Tab[]} tabs */
  constructor(bar, place, tabs) {
    this.bar = bar;
    this.place = place;
    this.tabs = tabs;
    /** @type {OpenTab | null} */
    this.opened = null;
    /** @type {RunDetail | null} */
    this.run = null;
    const asked = read("tab");
    this.key = tabs.some((tab) => tab.key === asked) ? /** @type {string} */ (asked) : tabs[0].key;
    fill(
      bar,
      tabs.map((tab) =>
        h(
          "button",
          {
            type: "button", role: "tab", id: `tab-${tab.key}`, "aria-controls": place.id,
            onclick: () => this.open(tab.key),
          },
          tab.title,
        ),
      ),
    );
    place.setAttribute("role", "tabpanel");
    bar.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!by) return;
      const at = tabs.findIndex((tab) => tab.key === this.key);
      this.open(tabs[(at + by + tabs.length) % tabs.length].key);
      /** @type {HTMLElement | null} */ (bar.querySelector("[aria-selected=true]"))?.focus();
    });
    addEventListener("popstate", () => {
      const wanted = read("tab") ?? tabs[0].key;
      if (wanted !== this.key && tabs.some((tab) => tab.key === wanted)) this.#switch(wanted);
    });
    this.#mark();
  }

  /** @param {string} key */
  async open(key) {
    if (key === this.key && this.opened) return;
    write({ tab: key === this.tabs[0].key ? null : key }, { step: true });
    await this.#switch(key);
  }

  /** @param {string} key */
  async #switch(key) {
    this.key = key;
    this.#mark();
    this.opened?.close?.();
    this.place.replaceChildren();
    this.opened = null;
    if (this.run) await this.#start();
  }

  /** @param {RunDetail} run */
  show(run) {
    const first = this.run === null;
    this.run = run;
    if (first) this.#start();
    else this.opened?.run?.(run);
  }

  async #start() {
    const tab = this.tabs.find((one) => one.key === this.key);
    if (!tab || !this.run) return;
    // Each tab draws into its own element, so a late answer cannot overwrite another tab.
    const room = h("div");
    mount(this.place, room);
    const { run } = this;
    try {
      const opened = await tab.open(room, run);
      // Another tab may have been chosen, or news have come, in the meantime.
      if (!room.isConnected) opened.close?.();
      else this.opened = opened;
      if (this.run !== run) this.opened?.run?.(this.run);
    } catch (error) {
      showFailure(room, error);
    }
  }

  #mark() {
    for (const button of this.bar.children) {
      const on = button.id === `tab-${this.key}`;
      button.setAttribute("aria-selected", String(on));
      button.setAttribute("tabindex", on ? "0" : "-1");
      // On a narrow screen the chosen tab may be beyond the edge.
      if (on) button.scrollIntoView({ block: "nearest", inline: "nearest" });
    }
    this.place.setAttribute("aria-labelledby", `tab-${this.key}`);
  }
}
