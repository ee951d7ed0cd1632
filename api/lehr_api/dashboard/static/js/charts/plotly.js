/** Plotly, loaded when the first chart is drawn, and drawn in the page's own colours. */

import { Unreachable } from "../api.js";
import { isDark } from "../colour.js";

/** @type {Promise<any> | null} */
let loading = null;

/** @returns {Promise<any>} the Plotly module of the installed wheel */
export function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = document.documentElement.dataset.plotly ?? "";
    script.onload = () => done(/** @type {any} */ (globalThis).Plotly);
    script.onerror = () => {
      // The server may be unavailable for a moment: the next drawing tries again.
      loading = null;
      script.remove();
      failed(new Unreachable());
    };
    document.head.append(script);
  });
  return loading;
}

export const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, showAxisDragHandles: false, showTips: false };

/** @type {{theme: string, values: Record<string, string>} | null} */
let inks = null;

/** Return the page's colours, for drawings that its style sheets do not reach. */
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

/** Return the settings common to the axes of all charts. */
export function axis() {
  const colours = ink();
  return {
    gridcolor: colours.grid,
    linecolor: colours.rule,
    zeroline: false,
    tickcolor: colours.rule,
    tickfont: { size: 11, color: colours.dim },
    title: { font: { size: 12, color: colours.dim }, standoff: 8 },
    exponentformat: "e",
    minorloglabels: "none",
    automargin: false,
  };
}

/** Return the settings common to the layouts of all charts. */
export function layout() {
  const colours = ink();
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colours.sans, size: 12, color: colours.ink },
    showlegend: false,
    hovermode: false,
    uirevision: "keep",
  };
}
