/** A figure that the server has drawn. */

import { stroke } from "../colour.js";

/**
 * Put a figure into the page, in the colours of its theme. Its points are links to their runs.
 *
 * @param {HTMLElement} place
 * @param {string} svg
 */
export function showFigure(place, svg) {
  const drawn = new DOMParser().parseFromString(svg, "text/html").body;
  place.replaceChildren(...drawn.children);
  for (const group of /** @type {NodeListOf<SVGElement>} */ (place.querySelectorAll("[data-slot]"))) {
    group.style.color = stroke(Number(group.dataset.slot)).colour;
  }
}
