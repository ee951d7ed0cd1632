/** Render log lines as a terminal would. */

// eslint-disable-next-line no-control-regex -- escape sequences begin with a control character
const ANSI = /\u001b\[[0-9;?]*[A-Za-z]/g;

/**
 * Remove colours from a line, and the text that carriage returns overwrite.
 *
 * @param {string} line
 */
export const shown = (line) => line.replace(ANSI, "").replace(/\r$/, "").split("\r").at(-1) ?? "";
