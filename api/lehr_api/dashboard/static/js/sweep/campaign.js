/** What a campaign answers and has tried: how it narrows, its law, its budget, its rungs, the rollout. */

import { get, post } from "../api.js";
import { dataTable, fill, h } from "../dom.js";
import { acts, factList, openForm } from "../form.js";
import { percent } from "../format.js";
import { toast } from "../notices.js";
import { ENDED } from "../status.js";
import { showFigure } from "./figure.js";

/** @typedef {{run_id: string, number: number, rung: number, state: string, text: string, why: string}} Trial */

/** How many steps of its course are drawn. Each takes a fit, so at first the page comes without them. */
const STEPS = [0, 40];

/**
 * Show figures and what they say.
 *
 * @param {string} title
 * @param {Record<string, string>} figures SVG by title
 * @param {[string, string][]} facts name and text of each
 */
export function evidence(title, figures, facts) {
  const place = h("div.figure.several");
  showFigure(place, Object.values(figures).join(""));
  return [title && h("h2", {}, title), Object.keys(figures).length > 0 && place, factList(facts)];
}

/** Launch the recommended rollout. @param {any} view of the campaign */
const launch = ({ cost, facts, rollout_spec: spec }) => openForm({
  title: `Launch ${spec.name}?`,
  fields: [
    h("p", {}, facts[0][1]),
    h("p", {}, `Estimated for the run itself: ${cost ?? "not known yet"}. A failed gate of a stage stops it.`),
  ],
  yes: "Launch the rollout",
  act: async () => location.assign(`/rollouts/${(await post("/rollouts", { spec })).id}`),
});

/** Make a table with a line for each rung, and its trials. @param {{rung_table: string[][], trials: Trial[]}} view */
function rungs({ rung_table: [head, ...rows], trials }) {
  /** @param {string} text @param {number} rung */
  const first = (text, rung) => h("td", {}, h("details", {}, h("summary", {}, text), h(
    "ol", {}, trials.filter((trial) => trial.rung === rung).map(({ number, run_id: run, text: own, state, why }) => h(
      "li", { value: number }, h("a", { href: `/runs/${run}` }, own), ` ${state}. ${why}`,
    )),
  )));
  const line = (/** @type {string[]} */ [title, ...texts], /** @type {number} */ rung) => h(
    "tr", {}, first(title, rung), texts.map((text) => h("td.num", {}, text)),
  );
  return dataTable("Trials", head.map((name, i) => `${i ? ".num" : ""} ${name}`), rows.map(line), { kind: ".rungs" });
}

/** Say what runs now or next, and why; and the budget. @param {Trial[]} trials @param {Map<string, string>} facts */
function nowOf(trials, facts) {
  const living = trials.filter(({ state }) => !ENDED.has(state));
  const name = facts.has("stopped") ? "stopped" : "next";
  return h("p.hint", {}, living.map(({ run_id: run, text, state, why }) => [
    h("b", {}, `${state} `), h("a", { href: `/runs/${run}` }, text.split(": ")[0]), `. ${why} `,
  ]), !living.length && [h("b", {}, `${name} `), `${facts.get(name)} `], h("b", {}, "spent "), facts.get("spent"));
}

/** @param {HTMLElement} place @param {HTMLElement} trials @param {string} id of the campaign */
export async function showCampaign(place, trials, id) {
  let law = null;
  for (const steps of STEPS.slice(place.children.length)) {
    const view = await get(`/sweeps/${id}/campaign`, { steps });
    law ??= view.answer && await post("/sweeps/law", { refs: [id] });
    const { total, spent, reserved } = view.budget;
    const used = [spent, reserved].map((hours) => h("i", { vars: { "--share": hours / total } }));
    const label = `${percent(spent / total)} of the budget is spent, ${percent(reserved / total)} reserved`;
    const copy = () => navigator.clipboard.writeText(view.rollout ?? "").then(() => toast("Copied."));
    const facts = new Map(view.facts);
    const [said, outside] = facts.get("answer").split(" Outside of");
    const isDrawn = view.course.length > 1;
    place.replaceChildren(h(
      "div", {}, h(
        "p.verdict", {}, said, " ", view.rollout
          && h("button.main", acts({ type: "button", onclick: () => launch(view) }), "Launch this rollout"),
      ),
      nowOf(view.trials, facts), h("div.meter.budget", { role: "img", "aria-label": label, title: label }, used),
      isDrawn ? evidence("", view.figures, []) : law && evidence("", law.figures, []),
      outside && h("p.hint", {}, `Outside of${outside}`),
      evidence("", {}, view.facts.filter((/** @type {string[]} */ [name]) => name.startsWith("expected"))),
      view.rollout && h(
        "details", {}, h("summary", {}, "Recommended rollout"), h("button", { type: "button", onclick: copy }, "Copy it"),
        h("pre", {}, view.rollout),
      ),
      law && evidence("The law", isDrawn ? law.figures : {}, law.facts),
    ));
    fill(trials, rungs(view));
  }
}
