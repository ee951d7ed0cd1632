/** The mark of a run's line, as its curves are drawn. */

import { s } from "../dom.js";
import { DASHES } from "./drawing.js";

/** @param {{colour: string, dash: import("./chart.js").Line["dash"]}} stroke */
export function swatch({ colour, dash }) {
  return s(
    "svg",
    { class: "swatch", viewBox: "0 0 18 8", width: "18", height: "8", "aria-hidden": "true" },
    s("line", { x1: 0, x2: 18, y1: 4, y2: 4, stroke: colour, "stroke-dasharray": DASHES[dash] ?? null }),
  );
}
