/** Render log lines as a terminal would. */

// eslint-disable-next-line no-control-regex -- escape sequences begin with a control character
const ANSI = /\u001b\[[0-9;?]*[A-Za-z]/g;

/**
 * Remove colours from a line, and the text that carriage returns overwrite.
 *
 * @param {string} line
 */
export const shown = (line) => line.replace(ANSI, "").replace(/\r$/, "").split("\r").at(-1) ?? "";

const ERROR = /\b(error|exception|traceback|out of memory|killed)\b/i;
/** The end of a traceback: the class of the exception, of any package. */
const RAISED = /^(\[rank\d+\]: ?)?[\w.]*(Error|Exception|Interrupt)(:|$)/;

/** @param {string} line */
export const isError = (line) => ERROR.test(line) || RAISED.test(line);

/**
 * Return whether the next line overwrites this one: tqdm moves the cursor up after each update of an inner bar.
 *
 * @param {string} line as it came
 */
export const overwritten = (line) => line.endsWith("\u001b[A");
