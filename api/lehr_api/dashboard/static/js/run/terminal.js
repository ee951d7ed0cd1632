/** What a terminal would show of what a training printed. */

// eslint-disable-next-line no-control-regex -- escape sequences begin with a control character
const ANSI = /\u001b\[[0-9;?]*[A-Za-z]/g;

/**
 * A line without colours; a carriage return writes over what came before it.
 *
 * @param {string} line
 */
export const shown = (line) => line.replace(ANSI, "").replace(/\r$/, "").split("\r").at(-1) ?? "";
