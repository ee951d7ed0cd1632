/** Whether a chart would look as it does: then it is not drawn again. */

/**
 * @typedef {import("./chart.js").Line} Line
 * @typedef {import("./chart.js").Look} Look
 * @typedef {{lines: Line[], look: Look}} Drawn
 */

const OF_LINE = /** @type {const} */ (["run", "label", "colour", "dash", "cut", "metric", "curve"]);
const OF_LOOK = /** @type {const} */ (["x", "logx", "logy", "band"]);

/**
 * @param {Drawn | undefined} before
 * @param {Drawn} now curves are compared by identity: a feed replaces a curve that has new points
 */
export function alike(before, now) {
  return (
    before !== undefined &&
    before.lines.length === now.lines.length &&
    before.lines.every((line, i) => OF_LINE.every((key) => line[key] === now.lines[i][key])) &&
    OF_LOOK.every((key) => before.look[key] === now.look[key]) &&
    before.look.span?.join() === now.look.span?.join()
  );
}
