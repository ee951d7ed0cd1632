/** Elements without HTML strings: text is always text. */

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
 * An element: `h("a.name", {href: "/"}, "text")`.
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
 * The same for SVG.
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
 * Room for a table that may be wider than the page; the keyboard can scroll it.
 *
 * @param {HTMLElement} table
 */
export function scrollable(table) {
  const label = table.getAttribute("aria-label");
  return h("div.scroll-x", { tabindex: "0", role: label ? "region" : null, "aria-label": label }, table);
}

/**
 * Put these children in place of what is there.
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
 * An element of the page that must be there.
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
 * Calls `act` at most once a frame, and not at all while the page is hidden.
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
 * Calls `act` at most every `ms` milliseconds: at once, then again at the end if asked meanwhile.
 * A call still under way counts: the next begins after it ended.
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
