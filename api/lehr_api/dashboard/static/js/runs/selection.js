/** The selected runs: kept over filters and in the address, with what can be done to all of them. The page's keys. */

import { get, post } from "../api.js";
import { checkbox, fill, h } from "../dom.js";
import { acts, openForm } from "../form.js";
import { integer, NONE } from "../format.js";
import { shortcut } from "../keys.js";
import { message, toast } from "../notices.js";
import { addTags, archive, referenceWord, setReference } from "../run/tags_archive.js";
import { ENDED } from "../status.js";
import { read, write } from "../urlstate.js";
/** @import { RunView } from "../types.js" */

/** How many runs an address has room for. */
const KEPT = 200;
/** How many names a question lists. */
const NAMED = 8;

/** @param {RunView[]} runs */
function namesOf(runs) {
  const names = runs.slice(0, NAMED).map((run) => run.name).join(", ");
  return runs.length > NAMED ? `${names} and ${integer(runs.length - NAMED)} more` : names;
}

/**
 * Return the rows from the one that was pressed last to this one, or this one alone if the last has no row any more.
 *
 * @param {RunView[]} listed @param {string | null} last @param {RunView} run
 */
export function between(listed, last, run) {
  const [from, to] = [last, run.id].map((id) => listed.findIndex((one) => one.id === id)).sort((a, b) => a - b);
  return from < 0 ? [run] : listed.slice(from, to + 1);
}

export class Selection {
  /**
   * @param {HTMLElement} bar
   * @param {(ids: string[]) => void} onChange called with the runs whose rows are to be drawn again
   * @param {() => void} onArchived
   */
  constructor(bar, onChange, onArchived) {
    this.bar = bar;
    this.onChange = onChange;
    this.onArchived = onArchived;
    /** The run whose box was pressed last: with Shift the next press selects all between. @type {string | null} */
    this.last = null;
    /** @type {Map<string, RunView | null>} null until its view is here */
    this.runs = new Map((read("select") ?? "").split(",").filter(Boolean).map((id) => [id, null]));
  }

  get size() { return this.runs.size; }

  /** @param {string} id */
  has(id) { return this.runs.has(id); }

  /** Fetch what the address names and no page of the list has brought. */
  async learn() {
    const unknown = [...this.runs].filter(([, run]) => run === null).map(([id]) => id);
    await Promise.all(unknown.map(async (id) => {
      try {
        this.runs.set(id, await get(`/runs/${encodeURIComponent(id)}`));
      } catch {
        this.runs.delete(id);
      }
    }));
    this.draw();
  }

  /** @param {RunView} run the newest view of a run */
  put(run) {
    if (!this.runs.has(run.id)) return;
    this.runs.set(run.id, run);
    this.draw();
  }

  /** @param {RunView[]} runs @param {boolean} yes */
  select(runs, yes) {
    for (const run of runs) {
      if (yes) this.runs.set(run.id, run);
      else this.runs.delete(run.id);
    }
    this.#changed(runs.map((run) => run.id));
  }

  /** @param {RunView[]} runs */
  hasAll(runs) { return runs.length > 0 && runs.every((run) => this.has(run.id)); }

  /** Return the box of a run's row. @param {RunView} run @param {() => RunView[]} listed the rows in their order */
  box(run, listed) {
    let shift = false;
    return h("label.box", {}, checkbox(this.has(run.id), (yes) => {
      this.select(shift ? between(listed(), this.last, run) : [run], yes);
      this.last = run.id;
    }, {
      "aria-label": `Select ${run.name}`, title: "With Shift: all rows from the one selected last",
      onclick: (/** @type {MouseEvent} */ event) => void (shift = event.shiftKey),
    }));
  }

  /** @param {RunView[]} runs @param {string} of what they are @param {(yes: boolean) => void} [act] */
  boxOf(runs, of, act = (yes) => this.select(runs, yes)) {
    const all = this.hasAll(runs);
    return h("label.box", {}, checkbox(all, act, {
      "aria-label": `Select ${of}`, indeterminate: !all && runs.some(({ id }) => this.has(id)),
    }));
  }

  clear() {
    const ids = [...this.runs.keys()];
    this.runs.clear();
    this.#changed(ids);
  }

  /** The address of the comparison of the selected runs. */
  get comparison() {
    return `/compare?runs=${[...this.runs.keys()].join(",")}`;
  }

  /** @param {string[]} ids */
  #changed(ids) {
    write({ select: this.runs.size <= KEPT ? [...this.runs.keys()].join(",") : null });
    this.draw();
    this.onChange(ids);
  }

  draw() {
    const chosen = /** @type {RunView[]} */ ([...this.runs.values()].filter(Boolean));
    const live = chosen.filter((run) => !ENDED.has(run.state));
    this.bar.hidden = this.size === 0;
    fill(
      this.bar,
      h("b", {}, `${integer(this.size)} selected`),
      this.size > 1 && h("a.button", { href: this.comparison }, "Compare"),
      chosen.length === 1 && h(
        "button", acts({ key: "star", type: "button", onclick: () => setReference(chosen[0]) }),
        referenceWord(chosen[0]),
      ),
      h("button", acts({ key: "tag", type: "button", onclick: () => addTags(chosen) }), "Tag"),
      live.length === 0
        && h("button", acts({ key: "archive", type: "button", onclick: () => this.#archive(chosen) }), "Archive"),
      live.length > 0 && h(
        "button.danger", acts({ key: "cancel", type: "button", onclick: () => this.#cancel(live) }),
        `Cancel ${integer(live.length)} ${live.length === 1 ? "run" : "runs"}`,
      ),
      h("button.quiet", { key: "clear", type: "button", onclick: () => this.clear() }, "Clear"),
    );
  }

  /** @param {RunView[]} runs */
  #archive(runs) {
    archive(runs, () => {
      this.clear();
      this.onArchived();
    });
  }

  /** @param {RunView[]} runs */
  #cancel(runs) {
    openForm({
      title: `Cancel ${runs.length === 1 ? "this run" : `${integer(runs.length)} runs`}?`,
      fields: h("p", {}, `${namesOf(runs)}. Cancelling does not save a checkpoint; existing checkpoints stay.`),
      yes: "Cancel them",
      danger: true,
      act: async () => {
        const results = await Promise.allSettled(runs.map((run) => post(`/runs/${run.id}/cancel`)));
        const bad = results.filter((result) => result.status === "rejected");
        if (!bad.length) return;
        const of = runs.length === 1 ? "" : `${bad.length} of ${runs.length} could not be cancelled: `;
        throw new Error(`${of}${message(bad[0].reason)}`);
      },
    });
  }
}

/**
 * @param {HTMLInputElement} filter
 * @param {import("./rows.js").Rows<import("./groups.js").Item>} rows
 * @param {Selection} selection
 * @param {() => import("./groups.js").Item[]} items
 * @param {(group: string) => void} toggle fold or unfold a group
 */
export function runsKeys(filter, rows, selection, items, toggle) {
  shortcut("/", "filter", () => {
    filter.focus();
    filter.select();
  });
  const move = (/** @type {number} */ by) => {
    const index = Math.min(items().length - 1, Math.max(0, rows.marked + by));
    rows.scrollTo(index);
    rows.mark(index);
  };
  /** Act on the marked row. @param {(item: import("./groups.js").Item) => void} act */
  const onRow = (act) => () => {
    const item = items()[rows.marked];
    if (item) act(item);
  };
  const open = onRow((one) => {
    const address = one.kind === "run" ? `/runs/${one.run.id}` : one.href;
    if (address) location.assign(address);
    else if (one.kind === "group") toggle(one.id);
  });
  shortcut("j", "next row", () => move(1));
  shortcut("k", "row before", () => move(-1));
  for (const key of ["Enter", "o"]) shortcut(key, "open the row", open);
  shortcut("x", "select the row, or all runs of a group", onRow((one) => {
    const runs = one.kind === "run" ? [one.run] : one.runs;
    selection.select(runs, !selection.hasAll(runs));
  }));
  shortcut("e", "fold or unfold the group", onRow((one) => one.kind === "group" && toggle(one.id)));
  shortcut("c", "compare the selected runs", () => {
    if (selection.size > 1) location.assign(selection.comparison);
    else toast(`Select two runs or more to compare them (${selection.size || NONE} selected).`);
  });
}
