/** What a campaign answers: its law, its budget, what each trial taught, and the rollout. */

import { get, post } from "../api.js";
import { showFigure } from "../charts/drawing.js";
import { h } from "../dom.js";
import { percent } from "../format.js";
import { toast } from "../notices.js";

/** @param {[string, string][]} facts name and text of each */
const list = (facts) => h("dl.facts", {}, facts.map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));

/** @param {HTMLElement} place @param {string} id of the campaign */
export async function showCampaign(place, id) {
  const { answer, budget: { total, spent, reserved }, facts, rollout } = await get(`/sweeps/${id}/campaign`);
  const used = [spent, reserved].map((hours) => h("i", { vars: { "--share": hours / total } }));
  const label = `${percent(spent / total)} of the budget is spent, ${percent(reserved / total)} reserved`;
  const copy = () => navigator.clipboard.writeText(rollout).then(() => toast("Copied."));
  for (const course of [false, true]) { // What each trial taught takes a fit for each: it comes second.
    const law = answer ? await post("/sweeps/law", { refs: [id], course }) : {};
    const figures = h("div.figure");
    showFigure(figures, Object.values(law.figures ?? {}).join(""));
    place.replaceChildren(h(
      "div", {}, figures, h("div.meter.budget", { role: "img", "aria-label": label }, used), list(facts),
      law.facts && [h("h2", {}, "The law"), list(law.facts), h("h2", {}, "What each trial taught")],
      law.runs && list(law.runs.map((/** @type {any} */ run) => [run.name, run.text])),
      rollout && h("button", { type: "button", onclick: copy }, "Copy the rollout"),
      rollout && h("details", {}, h("summary", {}, "Recommended rollout"), h("pre", {}, rollout)),
    ));
  }
}
