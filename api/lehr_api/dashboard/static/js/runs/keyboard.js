/** The keys of the runs page. */

import { NONE } from "../format.js";
import { rowKeys, shortcut } from "../keys.js";
import { toast } from "../notices.js";

/**
 * @param {HTMLInputElement} filter
 * @param {import("./rows.js").Rows<import("./groups.js").Item>} rows
 * @param {import("./selection.js").Selection} selection
 * @param {() => import("./groups.js").Item[]} items
 * @param {(sweep: string) => void} toggle fold or unfold a sweep
 */
export function runsKeys(filter, rows, selection, items, toggle) {
  shortcut("/", "filter", () => {
    filter.focus();
    filter.select();
  });
  rowKeys({
    count: () => items().length,
    show: (index) => {
      rows.mark(index);
      rows.scrollTo(index);
    },
    open: (index) => {
      const one = items()[index];
      if (one) location.assign(one.kind === "run" ? `/runs/${one.run.id}` : `/sweeps/${one.id}`);
    },
    select: (index) => {
      const one = items()[index];
      if (one?.kind === "run") selection.select([one.run], !selection.has(one.run.id));
      else if (one) toggle(one.id);
    },
  });
  shortcut("c", "compare the selected runs", () => {
    if (selection.size > 1) location.assign(selection.comparison);
    else toast(`Select two runs or more to compare them (${selection.size || NONE} selected).`);
  });
}
