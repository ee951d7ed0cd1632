/**
 * Draw again in place: take over from a new drawing only what differs from the old one.
 *
 * Elements that `h` and `s` make remember their props. A new drawing gives its props, listeners and
 * children to the elements that are already in the page, matched by key. So focus, hover, selected
 * text and scroll positions survive a live update.
 */

/** @typedef {Record<string, any>} Props */

/** Props that live as properties of the element; users change some of them. */
const PROPERTIES = new Set(["value", "checked", "disabled", "open", "indeterminate"]);
/** Props that name what an element stands for. A key is never written to the page. */
const KEYS = ["key", "id", "data-run", "data-sweep", "data-rollout", "data-gate", "data-stage"];

/** @type {WeakMap<Element, {type: string, props: Props}>} */
const made = new WeakMap();
/** @type {WeakMap<Element, Record<string, ((event: Event) => void) | undefined>>} */
const listeners = new WeakMap();
/** @type {WeakSet<Node>} */
const kept = new WeakSet();

/** Whether a prop or a child is none. @param {unknown} value */
export const absent = (value) => value === null || value === undefined || value === false;

/** @param {Element} element @param {string} type @param {((event: Event) => void) | undefined} act */
function listen(element, type, act) {
  const acts = listeners.get(element) ?? {};
  listeners.set(element, acts);
  if (!(type in acts)) element.addEventListener(type, (event) => acts[type]?.(event));
  acts[type] = act;
}

/**
 * @param {any} element
 * @param {string} key
 * @param {any} value null to take it away
 * @param {any} before the value at the previous drawing
 */
function write(element, key, value, before) {
  if (key === "key") return;
  if (key.startsWith("on") && (typeof value === "function" || typeof before === "function")) {
    listen(element, key.slice(2), value ?? undefined);
  } else if (key === "vars") {
    for (const [name, v] of Object.entries(value ?? {})) {
      if (before?.[name] !== v) element.style.setProperty(name, String(v));
    }
  } else if (PROPERTIES.has(key)) {
    const wanted = absent(value) ? (key === "value" ? "" : false) : value;
    // What a user has opened stays open, and what a user types stays, until the drawing itself changes it.
    if (before !== undefined && value === before && (key === "open" || key === "value")) return;
    if (element[key] !== wanted) element[key] = wanted;
  } else if (absent(value)) {
    element.removeAttribute(key);
  } else {
    const text = value === true ? "" : String(value);
    if (element.getAttribute(key) !== text) element.setAttribute(key, text);
  }
}

/**
 * Give a new element its props: `on*` functions are listeners, `vars` are CSS variables, `key`
 * matches it with the same element of the next drawing; the rest are attributes.
 *
 * @param {Element} element
 * @param {string} type tag and first class: elements of another type are never taken for this one
 * @param {Props} props
 */
export function begin(element, type, props) {
  made.set(element, { type, props });
  for (const [key, value] of Object.entries(props)) if (!absent(value)) write(element, key, value, undefined);
}

/**
 * Mark an element that its module holds on to: drawings place this very element.
 *
 * @template {Node} T
 * @param {T} node
 * @returns {T}
 */
export function keep(node) {
  kept.add(node);
  return node;
}

/** @param {Node} node */
function signature(node) {
  if (kept.has(node)) return null;
  if (node.nodeType === Node.TEXT_NODE) return "text";
  const known = made.get(/** @type {Element} */ (node));
  if (!known) return null;
  const key = KEYS.map((name) => known.props[name]).find((value) => !absent(value));
  return key === undefined ? known.type : `${known.type.split(".")[0]} ${key}`;
}

/** @param {Element} old @param {Element} fresh */
function renewElement(old, fresh) {
  const before = made.get(old)?.props ?? {};
  const after = made.get(fresh)?.props ?? {};
  // A select has its value only after its options.
  const late = old.localName === "select";
  const apply = (/** @type {boolean} */ last) => {
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
      if ((late && key === "value") !== last) continue;
      const gone = absent(after[key]);
      if (gone && absent(before[key])) continue;
      write(old, key, gone ? null : after[key], before[key]);
    }
  };
  apply(false);
  patch(old, [...fresh.childNodes]);
  apply(true);
  made.set(old, { type: made.get(fresh)?.type ?? "", props: after });
}

/**
 * Make these the children of an element, and keep those that are already there.
 *
 * @param {Element} parent
 * @param {Node[]} fresh
 * @returns {Node[]} them
 */
export function patch(parent, fresh) {
  const there = Map.groupBy(parent.childNodes, signature);
  const wanted = fresh.map((node) => {
    const type = signature(node);
    const old = type === null ? undefined : there.get(type)?.shift();
    if (!old || old === node) return node;
    if (node instanceof Text) {
      if (/** @type {Text} */ (old).data !== node.data) /** @type {Text} */ (old).data = node.data;
    } else renewElement(/** @type {Element} */ (old), /** @type {Element} */ (node));
    return old;
  });
  place(parent, wanted);
  return wanted;
}

/**
 * Make these very nodes the children of an element. Those that are there already are not moved, and an element that
 * has moved among its neighbours keeps the focus.
 *
 * @param {Element} parent
 * @param {Node[]} wanted
 */
export function place(parent, wanted) {
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const focused = active !== null && parent.contains(active) ? active : null;
  const stay = new Set(wanted);
  for (const node of [...parent.childNodes]) if (!stay.has(node)) node.remove();
  let next = parent.firstChild;
  for (const node of wanted) {
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}
