/** A sparkline for a table row. */

import { fromWire } from "./format.js";
import { s } from "./dom.js";

const WIDTH = 84;
const HEIGHT = 20;
const PAD = 2;

/**
 * @param {import("./types.js").WireNumber[]} wire
 * @param {string} label for screen readers
 * @returns {SVGElement | null} null for fewer than two values
 */
export function sparkline(wire, label) {
  const values = wire.map(fromWire);
  const finite = /** @type {number[]} */ (values.filter((v) => v !== null && Number.isFinite(v)));
  if (values.length < 2 || finite.length < 2) return null;
  const low = Math.min(...finite);
  const span = Math.max(...finite) - low || 1;
  const x = (/** @type {number} */ i) => PAD + (i / (values.length - 1)) * (WIDTH - 2 * PAD);
  const y = (/** @type {number} */ v) => HEIGHT - PAD - ((v - low) / span) * (HEIGHT - 2 * PAD);

  let path = "";
  let pen = false;
  /** @type {[number, number][]} */
  const drawn = [];
  values.forEach((value, i) => {
    if (value === null || !Number.isFinite(value)) {
      pen = false;
      return;
    }
    path += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = true;
    drawn.push([x(i), y(value)]);
  });
  const svg = s(
    "svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    s("path", { d: path }),
  );
  const [cx, cy] = drawn[drawn.length - 1];
  if (pen) {
    svg.append(s("circle", { class: "last", cx: cx.toFixed(1), cy: cy.toFixed(1), r: "2" }));
  } else {
    // Mark a non-finite last value with a cross.
    svg.append(s("path", { class: "broken", d: `M${cx - 3} ${cy - 3}l6 6m0-6l-6 6` }));
  }
  return svg;
}
