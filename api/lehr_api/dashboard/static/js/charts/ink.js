/** The page's colours, for drawings that its style sheets do not reach. */

import { isDark } from "../colour.js";

/** @type {{theme: string, values: Record<string, string>} | null} */
let inks = null;

/** @returns {Record<string, string>} */
export function ink() {
  const theme = isDark() ? "dark" : "light";
  if (inks?.theme !== theme) {
    const style = getComputedStyle(document.documentElement);
    const value = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    inks = {
      theme,
      values: {
        ink: value("--ink"),
        dim: value("--ink-2"),
        rule: value("--rule"),
        strong: value("--rule-strong"),
        grid: value("--grid"),
        bg: value("--bg"),
        accent: value("--accent"),
        good: value("--good"),
        bad: value("--bad"),
        warn: value("--warn"),
        sans: value("--sans"),
      },
    };
  }
  return inks.values;
}
