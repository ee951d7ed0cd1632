/** A panel of the system tab: what the run's nodes and GPUs did while its newest attempt ran. */

import { get } from "../api.js";
import { h, mount } from "../dom.js";
import { historyPanel } from "../system_history.js";

const POINTS = 220;

/**
 * Fill the place with the measurements of the run's newest attempt.
 *
 * @param {HTMLElement} place
 * @param {import("../types.js").RunDetail} run
 */
export async function showMachine(place, run) {
  if (!run.attempt) return;
  /** @type {import("../types.js").RunSystem | null} */
  const system = await get(`/runs/${run.id}/system?attempt=${run.attempt}&points=${POINTS}`).catch(() => null);
  if (!system) return;
  mount(
    place,
    h("h2", {}, "Its nodes over time"),
    system.attempts.flatMap((attempt) => attempt.nodes.map((node) => [h("h3", {}, node.node), historyPanel(node)])),
  );
}
