/** Small charts of what a node did over time: CPU, memory, disk, network, GPUs. */

import { fill, h, s } from "./dom.js";
import * as f from "./format.js";
import { courses } from "./system_courses.js";

const WIDTH = 220;
const HEIGHT = 44;

/**
 * Draw one figure over time: its course, its last value, and the value under the pointer.
 *
 * @param {import("./system_courses.js").Course} course
 * @param {number[]} times
 */
function chart(course, times) {
  const known = /** @type {number[]} */ (course.values.filter((value) => value !== null));
  const top = course.top ?? (Math.max(...known) || 1);
  const x = (/** @type {number} */ i) => (i / Math.max(1, times.length - 1)) * WIDTH;
  const y = (/** @type {number} */ value) => HEIGHT - 1 - (value / top) * (HEIGHT - 2);
  let path = "";
  let pen = false;
  course.values.forEach((value, i) => {
    if (value !== null) path += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(Math.min(value, top)).toFixed(1)}`;
    pen = value !== null;
  });
  const last = known[known.length - 1];
  const reading = h("span.course-value", {}, course.text(last));
  const mark = s("line", { class: "course-mark", y1: 0, y2: HEIGHT, x1: -1, x2: -1 });
  const svg = s("svg", { class: "course", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${course.label}: last ${course.text(last)}, highest ${course.text(Math.max(...known))}` }, s("path", { d: path, "vector-effect": "non-scaling-stroke" }), mark);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const i = Math.round(((/** @type {PointerEvent} */ (event).clientX - box.left) / box.width) * (times.length - 1));
    const value = course.values[i];
    if (value === undefined) return;
    mark.setAttribute("x1", x(i).toFixed(1));
    mark.setAttribute("x2", x(i).toFixed(1));
    fill(reading, value === null ? "not measured" : course.text(value), " at ", f.time(times[i], { seconds: true }));
  });
  svg.addEventListener("pointerleave", () => {
    mark.setAttribute("x1", "-1");
    mark.setAttribute("x2", "-1");
    fill(reading, course.text(last));
  });
  return h("figure.course-box", {}, h("figcaption", {}, h("span.dim", {}, course.label), reading), svg);
}

/**
 * Show a node's measurements; a sentence if there are none.
 *
 * @param {import("./types.js").SystemHistory} history
 * @returns {import("./dom.js").Child}
 */
export function historyPanel(history) {
  const shown = courses(history);
  if (!shown.length) return h("p.hint", {}, `Nothing was measured on ${history.node} in that time.`);
  return h("div.courses", { "data-node": history.node }, shown.map((course) => chart(course, history.times)));
}
