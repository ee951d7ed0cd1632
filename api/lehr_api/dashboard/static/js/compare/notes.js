/** What a comparison says about its runs: its limits, means and gaps. */

import { coded, h } from "../dom.js";
import * as f from "../format.js";

const NOTES = 3;
const GAPS = 6;
const PLUS_MINUS = "± is half of the 95 % interval, from the noise between seeds.";

/** @param {import("../types.js").ComparisonView} comparison */
export function notesOf(comparison) {
  return [
    comparison.notes.slice(0, NOTES).map((note) => h("div.alert", {}, note)),
    comparison.notes.length > NOTES &&
      h(
        "details", {}, h("summary.dim", {}, `${comparison.notes.length - NOTES} more`),
        comparison.notes.slice(NOTES).map((note) => h("div.alert", {}, note)),
      ),
    h("p.note", {}, `Batches: ${comparison.batches_note}.`),
    comparison.means.map((mean) => h("p.note", {}, mean)),
    comparison.gaps.slice(0, GAPS).map((gap) => h("p.verdict.gap", {}, coded(gap.sentence))),
    comparison.gaps.length > GAPS && h(
      "details", {}, h("summary.dim", {}, `${comparison.gaps.length - GAPS} more`),
      comparison.gaps.slice(GAPS).map((gap) => h("p.note", {}, gap.sentence)),
    ),
    comparison.noise !== null && h("p.hint", {}, PLUS_MINUS),
    comparison.noise !== null && h("p.note", {}, `Noise between seeds: ${f.number(comparison.noise)}.`),
  ];
}
