/** A part of the cluster's page: each node over the last hour, day or 90 days, opened on request. */

import { get } from "../api.js";
import { fill, h, mount } from "../dom.js";
import { showFailure } from "../notices.js";
import { keep } from "../patch.js";
import { historyPanel } from "../system_history.js";
import { drainButton } from "./drain.js";

/** @typedef {import("../types.js").NodeView} NodeView */

const POINTS = 220;
/** @type {[string, number][]} */
const SPANS = [
  ["last hour", 3600],
  ["last day", 86_400],
  ["last 90 days", 7_776_000],
];

/** @param {string} node */
function panel(node) {
  const place = h("div");
  const choose = /** @type {HTMLSelectElement} */ (h("select", { "aria-label": `Span of ${node}` }, SPANS.map(([label, seconds]) => h("option", { value: seconds }, label))));
  const load = async () => {
    const from = Date.now() / 1000 - Number(choose.value);
    try {
      mount(place, historyPanel(await get(`/cluster/nodes/${encodeURIComponent(node)}/history?from=${from}&points=${POINTS}`)));
    } catch (error) {
      showFailure(place, error);
    }
  };
  choose.addEventListener("change", load);
  const details = /** @type {HTMLDetailsElement} */ (h("details.over-time", {}, h("summary", {}, `${node} over time`), choose, place));
  details.addEventListener("toggle", () => details.open && load());
  return keep(details);
}

/**
 * Keep one panel per node below a part of the page, outside of what is drawn again.
 *
 * @param {HTMLElement} after
 * @param {() => void} changed called after a node was drained or readmitted
 * @returns {(nodes: NodeView[]) => void} draws the panels if the nodes have changed
 */
export function nodesOverTime(after, changed) {
  const section = h("section", { "aria-label": "Nodes over time" });
  after.after(section);
  /** @type {Map<string, {element: HTMLElement, details: HTMLElement}>} an open panel stays open */
  const panels = new Map();
  let shown = "";
  return (nodes) => {
    const now = JSON.stringify(nodes.map((node) => [node.name, node.excluded, node.left]));
    if (now === shown) return;
    shown = now;
    for (const { name } of nodes) if (!panels.has(name)) panels.set(name, { element: h("div.node-tools"), details: panel(name) });
    for (const node of nodes) {
      const { element, details } = /** @type {{element: HTMLElement, details: HTMLElement}} */ (panels.get(node.name));
      fill(element, details, drainButton(node, changed));
    }
    mount(section, nodes.map((node) => panels.get(node.name)?.element));
  };
}
