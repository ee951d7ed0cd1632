/** Build elements without HTML strings, so that text is never parsed as HTML. */

/**
 * @typedef {Node | string | number | null | undefined | false | any[]} Child
 * @typedef {Record<string, any>} Props
 */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {Element} element
 * @param {Props} props `on*` functions are listeners, `vars` are CSS variables; the rest are attributes.
 */
function apply(element, props) {
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on") && typeof value === "function") {
      element.addEventListener(key.slice(2), value);
    } else if (key === "vars") {
      for (const [name, v] of Object.entries(value)) {
        /** @type {HTMLElement} */ (element).style.setProperty(name, String(v));
      }
    } else if (key === "value" || key === "checked" || key === "disabled" || key === "open" || key === "indeterminate") {
      /** @type {any} */ (element)[key] = value;
    } else {
      element.setAttribute(key, value === true ? "" : String(value));
    }
  }
}

/**
 * @param {Element | DocumentFragment} parent
 * @param {Child[]} children
 */
function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.append(child instanceof Node ? child : String(child));
  }
}

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
  if (classes.length) element.className = classes.join(" ");
  apply(element, props);
  append(element, children);
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
  apply(element, props);
  append(element, children);
  return element;
}

/**
 * Wrap a table that may be wider than the page. The keyboard can scroll it.
 *
 * @param {HTMLElement} table
 */
export function scrollable(table) {
  const label = table.getAttribute("aria-label");
  return h("div.scroll-x", { tabindex: "0", role: label ? "region" : null, "aria-label": label }, table);
}

/**
 * Replace the children of an element.
 *
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  const fragment = document.createDocumentFragment();
  append(fragment, children);
  parent.replaceChildren(fragment);
}

/**
 * Return an element of the page; throw if it is missing.
 *
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`no element #${id} in the page`);
  return element;
}

/**
 * Call `act` at most once per frame, and never while the page is hidden.
 *
 * @param {() => void} act
 * @returns {() => void}
 */
export function onceAFrame(act) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}

/**
 * Call `act` at most every `ms` milliseconds: at once, and again at the end if called in between.
 * Calls do not overlap: the next begins after the previous one has ended.
 *
 * @param {() => void | Promise<void>} act
 * @param {number} ms
 * @returns {() => void}
 */
export function throttled(act, ms) {
  let busy = false;
  let again = false;
  const run = async () => {
    busy = true;
    again = false;
    const pause = new Promise((done) => {
      setTimeout(done, ms);
    });
    try {
      await act();
    } finally {
      await pause;
      busy = false;
      if (again) run();
    }
  };
  return () => {
    if (busy) again = true;
    else run();
  };
}
