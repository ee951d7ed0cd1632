/** A figure of the server's in the page: in the colours of its theme, its points one way to their runs. */

import { stroke } from "../colour.js";
import { s } from "../dom.js";

/** A pointer farther from any point, in pixels of the figure, is at none. */
const REACH = 40;

/**
 * Put figures into the page. Points may lie closer together than a finger is wide: each figure is one link, to the
 * run of the point nearest to the pointer, and arrow keys go from point to point.
 *
 * @param {HTMLElement} place
 * @param {string} svg
 * @param {(run: string | null) => void} [onPoint] called with the run that the link leads to, while it is pointed at
 */
export function showFigure(place, svg, onPoint = () => undefined) {
  const drawn = new DOMParser().parseFromString(svg, "text/html").body;
  place.replaceChildren(...drawn.children);
  for (const group of /** @type {NodeListOf<SVGElement>} */ (place.querySelectorAll("[data-slot]"))) {
    group.style.color = stroke(Number(group.dataset.slot)).colour;
  }
  for (const one of place.querySelectorAll("svg")) linkPoints(one, onPoint);
}

/** @param {SVGSVGElement} svg @param {(run: string | null) => void} onPoint */
function linkPoints(svg, onPoint) {
  const marks = /** @type {SVGGraphicsElement[]} */ ([...svg.querySelectorAll("[data-run]")]);
  if (!marks.length) return;
  /** @type {{mark: SVGGraphicsElement, x: number, y: number}[]} */
  let points = [];
  // Where they are is known once they are drawn.
  const placed = () => (points.length ? points : points = marks.map((mark) => {
    const { x, y, width, height } = mark.getBBox();
    return { mark, x: x + width / 2, y: y + height / 2 };
  }).sort((a, b) => a.x - b.x || b.y - a.y));
  let at = 0;
  const title = s("title");
  const show = (/** @type {number} */ next, on = true) => {
    for (const { mark } of points) mark.classList.toggle("lit", false);
    const { mark } = placed()[next < 0 ? at : next];
    const words = mark.querySelector("title")?.textContent ?? "";
    if (next < 0) link.removeAttribute("href");
    else link.setAttribute("href", `/runs/${mark.dataset.run}`);
    mark.classList.toggle("lit", on && next >= 0);
    link.setAttribute("aria-label", words);
    title.textContent = next < 0 ? "" : words;
    at = next < 0 ? at : next;
    onPoint(on && next >= 0 ? (mark.dataset.run ?? null) : null);
  };
  const nearest = (/** @type {PointerEvent} */ { clientX, clientY }) => {
    const { x, y } = new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM()?.inverse());
    const far = placed().map((point) => Math.hypot(point.x - x, point.y - y));
    const least = Math.min(...far);
    show(least > REACH ? -1 : far.indexOf(least));
  };
  const step = (/** @type {KeyboardEvent} */ event) => {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    show((at + by + points.length) % points.length);
  };
  const { width, height } = svg.viewBox.baseVal;
  const link = s(
    "a", {
      href: `/runs/${marks[0].dataset.run}`, "aria-label": "Points, by arrow keys", onpointermove: nearest,
      onpointerdown: nearest, onpointerleave: () => show(at, false), onkeydown: step, onfocus: () => show(at),
      onblur: () => show(at, false),
    }, title, s("rect", { width, height, fill: "none", "pointer-events": "all" }),
  );
  svg.append(link);
}

/** Shapes around a point, in their order after the dot. */
const SHAPES = ["m-4.5 -4.5h9v9h-9z", "m0 -5.5l5 9.5h-10z", "m0 -6l6 6l-6 6l-6 -6z"];

/** Return the mark of a shape. @param {number} shape 0 for the dot @param {number} x @param {number} y */
export const shapeOf = (shape, x, y) => (shape
  ? s("path", { d: `M${x} ${y}${SHAPES[shape - 1]}`, fill: "currentColor" })
  : s("circle", { cx: x, cy: y, r: 4.5, fill: "currentColor" }));

/**
 * Give the points of a figure, and the lines through them, the looks of their runs.
 *
 * @param {HTMLElement} place
 * @param {Map<string, {colour: string, shape: number}>} looks by run
 */
export function showLooks(place, looks) {
  for (const group of /** @type {NodeListOf<SVGElement>} */ (place.querySelectorAll(".points"))) {
    for (const point of /** @type {NodeListOf<SVGElement>} */ (group.querySelectorAll("[data-run]"))) {
      const look = looks.get(point.dataset.run ?? "");
      const dot = point.lastElementChild;
      if (!look || !dot) continue;
      point.style.color = look.colour;
      for (const line of /** @type {NodeListOf<SVGElement>} */ (
        place.querySelectorAll(`[data-slot="${group.dataset.slot}"]`)
      )) line.style.color = look.colour;
      if (!look.shape) continue;
      const [x, y] = ["cx", "cy"].map((at) => Number(dot.getAttribute(at)));
      const mark = shapeOf(look.shape, x, y);
      mark.append(...dot.childNodes);
      dot.replaceWith(mark);
    }
  }
}
