/** Build elements without HTML strings, so that text is never parsed as HTML. */

import { absent, begin, keep, patch, place } from "./patch.js";
/** @import { Props } from "./patch.js" */

/**
 * @typedef {Node | string | number | null | undefined | false | any[]} Child
 */

const SVG = "http://www.w3.org/2000/svg";

/** @param {Child[]} children @returns {Node[]} */
const nodes = (children) => children.flat(Infinity).filter((child) => !absent(child)).map(
  (child) => (child instanceof Node ? child : document.createTextNode(String(child))),
);

/**
 * Make an element: `h("a.name", {href: "/"}, "text")`.
 *
 * @param {string} selector tag and classes
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function h(selector, props = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag);
  // A select has its value only after its options.
  element.append(...nodes(children));
  begin(
    element, classes.length ? `${tag}.${classes[0]}` : tag,
    classes.length ? { class: classes.join(" "), ...props } : props,
  );
  return element;
}

/**
 * Make an SVG element, as `h` does for HTML.
 *
 * @param {string} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {SVGElement}
 */
export function s(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  element.append(...nodes(children));
  begin(element, tag, props);
  return element;
}

/** Make an input: a text field unless the props say otherwise. @param {Props} props */
export const input = (props) => /** @type {HTMLInputElement} */ (h("input", { type: "text", ...props }));

/**
 * Make a checkbox, without its label.
 *
 * @param {boolean} checked
 * @param {(checked: boolean) => void} onChange
 * @param {Props} [props]
 */
export const checkbox = (checked, onChange, props = {}) => h("input", {
  type: "checkbox", checked, onchange: (/** @type {any} */ { target }) => onChange(target.checked), ...props,
});

/** Wrap a table that may be wider than the page. The keyboard can scroll it. @param {HTMLElement} table */
export function scrollable(table) {
  const label = table.getAttribute("aria-label");
  return h("div.scroll-x", { tabindex: "0", role: label ? "region" : null, "aria-label": label }, table);
}

/**
 * Make a table.
 *
 * @param {string} label
 * @param {(string | HTMLElement)[] | null} heads those of the columns: an element, or classes and a text: ".num rank"
 * @param {Child[]} rows
 * @param {{kind?: string}} [options] `kind`: classes of the table
 */
export function dataTable(label, heads, rows, { kind = "" } = {}) {
  const head = (/** @type {string | HTMLElement} */ column) => {
    if (column instanceof Node) return column;
    const [, classes = "", text = ""] = /^((?:\.[\w-]+)*) ?(.*)$/.exec(column) ?? [];
    return h(`th${classes}`, { scope: text ? "col" : null }, text);
  };
  return scrollable(h(
    `table${kind}`, { "aria-label": label },
    heads && h("thead", {}, h("tr", {}, heads.map(head))), h("tbody", {}, rows),
  ));
}

/**
 * Draw the children of an element, in place of those of the last drawing: what has not changed stays.
 *
 * @param {Element} parent
 * @param {...Child} children
 */
export const fill = (parent, ...children) => patch(parent, nodes(children));

/**
 * Put these very elements into an element, in place of all that is there. Their modules hold on to
 * them: later drawings never take another element for one of them.
 *
 * @param {Element} parent
 * @param {...Child} children
 */
export const mount = (parent, ...children) => place(parent, nodes(children).map(keep));

/** Set commands in a sentence, which stand between backticks, as code. @param {string} text @returns {Child[]} */
export const coded = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

/** Leave out of a sentence the commands for which pages have buttons. @param {string} text */
export const uncommanded = (text) => text.replace(
  / Add (it|them): `[^`]*`|, by `lehr [^`]*` for each|: `lehr seeds [^`]*` measures it/g, "",
);

/** Return an element of the page; throw if it is missing. @param {string} id @returns {HTMLElement} */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element #${id} in the page`);
  return element;
}

/**
 * Call `act` at most every `ms` milliseconds: at once, and again at the end if called in between.
 * Calls do not overlap: the next begins after the previous one has ended. A call with `true` ends the pause.
 *
 * @param {() => void | Promise<void>} act
 * @param {number} ms
 * @returns {(now?: unknown) => void}
 */
export function throttled(act, ms) {
  let busy = false;
  let again = false;
  let endPause = () => {};
  const run = async () => {
    busy = true;
    again = false;
    const pause = Promise.withResolvers();
    endPause = () => pause.resolve(undefined);
    setTimeout(endPause, ms);
    try {
      await act();
    } finally {
      await pause.promise;
      busy = false;
      if (again) run();
    }
  };
  // Strictly true: observers and listeners call it with what they observed.
  return (now) => {
    if (now === true) endPause();
    if (busy) again = true;
    else run();
  };
}
