/** Plotly, for figures that the server builds: loaded with the first of them, drawn in the page's own colours. */

import { Unreachable } from "../api.js";
import { ink } from "./ink.js";

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

/** Return the settings common to the axes of all figures. */
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

/** Return the settings common to the layouts of all figures. */
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
