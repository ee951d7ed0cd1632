/** The view lives in the address: a copied link shows the same. */

/**
 * @param {string} key
 * @returns {string | null}
 */
export const read = (key) => new URLSearchParams(location.search).get(key);

/**
 * @param {Record<string, string | number | boolean | null | undefined>} changes null, false and ""
 *   take a key out
 */
export function write(changes) {
  const params = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === false || value === "") params.delete(key);
    else params.set(key, value === true ? "1" : String(value));
  }
  // Commas and colons stay readable.
  const text = params.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%2F", "/");
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : "") + location.hash);
}

/** What this browser remembers for itself (columns, pins); nothing breaks without it. */
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
  /**
   * @param {string} key
   * @param {unknown} value
   */
  set(key, value) {
    try {
      localStorage.setItem(`lehr.${key}`, JSON.stringify(value));
    } catch {
      // Storage is off or full: the choice lasts as long as the page.
    }
  },
};
