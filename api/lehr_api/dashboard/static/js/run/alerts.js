/** The alerts of a run, each with why and what to try. */

import { h } from "../dom.js";
import { integer } from "../format.js";

/** @typedef {import("../types.js").RunDetail} RunDetail */

/**
 * Return what to show of each alert. Warnings of the trainer have no explanation, and an alert that has just been
 * pushed
 * has none until the run is fetched again.
 *
 * @param {RunDetail} run
 * @returns {{title: string, lines: import("../types.js").AlertLine[]}[]}
 */
export function explained(run) {
  return run.alerts.map((text) => {
    const found = run.diagnosis.find((alert) => alert.message === text);
    return found
      ? { title: `${found.code}, since step ${integer(found.step)}`, lines: found.explanation }
      : { title: text, lines: [] };
  });
}

/** @param {RunDetail} run */
export function alerts(run) {
  return explained(run).map(({ title, lines }) =>
    h("div.alert", {}, title, lines.length > 0 && h(
      "dl.facts", {}, lines.map(({ name, text }) => [h("dt", {}, name), h("dd", {}, text)]),
    )),
  );
}
