/** Keep the state of a view in the URL, so that a copied link shows the same view. */

/** @param {string} key @returns {string | null} */
export const read = (key) => new URLSearchParams(location.search).get(key);

/**
 * @param {Record<string, string | number | boolean | null | undefined>} changes null, false and ""
 *   take a key out
 * @param {{step?: boolean}} [options] `step`: the browser's Back returns to the view before
 */
export function write(changes, options = {}) {
  const params = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === false || value === "") params.delete(key);
    else params.set(key, value === true ? "1" : String(value));
  }
  // Keep commas and colons readable.
  const text = params.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
  const address = location.pathname + (text ? `?${text}` : "") + location.hash;
  if (options.step && address !== location.pathname + location.search + location.hash) {
    history.pushState(null, "", address);
  }
  else history.replaceState(null, "", address);
}

/** Settings that this browser stores (columns, pins). The pages also work without them. */
export const memory = {
  /**
   * @template T
   * @param {string} key
   * @param {T} otherwise
   * @returns {T}
   */
  get(key, otherwise) {
    try {
      const text = localStorage.getItem(`lehr.${key}`);
      return text === null ? otherwise : JSON.parse(text);
    } catch {
      return otherwise;
    }
  },
  /** @param {string} key @param {unknown} value */
  set(key, value) {
    try {
      localStorage.setItem(`lehr.${key}`, JSON.stringify(value));
    } catch {
      // Storage is disabled or full: keep the choice until the page closes.
    }
  },
};
