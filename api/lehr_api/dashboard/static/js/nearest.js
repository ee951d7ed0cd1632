/** Find the name that somebody probably meant. */

/**
 * Return how many letters differ between two words: inserted, removed, replaced or swapped.
 *
 * @param {string} a
 * @param {string} b
 */
export function distance(a, b) {
  /** @type {number[][]} */
  const rows = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i += 1) {
    rows[i] = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const cost = a[i - 1] === b[j - 1] ? 0 : 1;
      rows[i][j] = Math.min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + cost);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        rows[i][j] = Math.min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.length][b.length];
}

/**
 * Return a question after the nearest name, with a space after it; "" if none is near.
 *
 * @param {string} word
 * @param {Iterable<string>} names
 */
export function nearest(word, names) {
  let best = "";
  let least = Math.max(2, Math.floor(word.length / 3)) + 1;
  for (const name of names) {
    const far = distance(word.toLowerCase(), name.toLowerCase());
    if (far < least) [best, least] = [name, far];
  }
  return best ? `Did you mean ${best}? ` : "";
}
