/** The row of a sweep in the runs table: its counts and its best trial. */

import { h } from "../dom.js";
import { atPoint, metric } from "../format.js";
import { countsLine } from "../status.js";

/**
 * @typedef {import("../types.js").RunView} RunView
 * @typedef {import("../types.js").SweepView} SweepView
 */

/**
 * @param {string} id
 * @param {RunView[]} runs those of its trials that the table shows
 * @param {SweepView | undefined} sweep undefined until its view is here
 * @param {{open: boolean, columns: number, curve: RunView | null, mark: HTMLElement | null | undefined, isSelected:
 *   (run: RunView) => boolean,
 * onSelect: (yes: boolean) => void, onToggle: () => void}} options `curve`: the run whose curve stands for it; `mark`:
 * that of this curve
 */
export function sweepRow(id, runs, sweep, { open, columns, curve, mark, isSelected, onSelect, onToggle }) {
  /** @type {Record<string, number>} */
  const counts = sweep?.counts ?? {};
  if (!sweep) for (const run of runs) counts[run.state] = (counts[run.state] ?? 0) + 1;
  const size = Object.values(counts).reduce((a, b) => a + b, 0);
  const name = sweep?.name ?? runs[0].name.replace(/-\d+$/, "");
  const all = runs.every(isSelected);
  return h(
    "tr.group",
    { "data-sweep": id, "data-curve": curve?.id },
    h("td.shrink", {}, h("input", {
      type: "checkbox",
      "aria-label": `Select the runs of ${name}`,
      checked: all,
      indeterminate: !all && runs.some(isSelected),
      onchange: (/** @type {Event} */ event) => onSelect(/** @type {HTMLInputElement} */ (event.target).checked),
    }), mark),
    h(
      "td.col-name",
      {},
      h(
        "button.twist",
        {
          type: "button", "aria-expanded": String(open), "aria-label": `${open ? "Fold" : "Unfold"} ${name}`,
          onclick: onToggle,
        },
        open ? "▾" : "▸",
      ),
      h("a.name", { href: `/sweeps/${id}`, title: name }, name),
      h("span.dim", {}, runs.length < size ? ` (${runs.length} of ${size})` : ` (${size})`),
    ),
    h(
      "td",
      { colspan: String(columns - 1) },
      countsLine(counts),
      sweep?.held_out === "different"
        && h("span.reason", { title: sweep.held_out_note }, "no best: different held-out sets"),
      sweep?.best_parameters && h(
        "span.reason", {}, "best ", h("b", {}, metric(sweep.metric, sweep.best_value)), atPoint(sweep.best_parameters),
      ),
    ),
  );
}
