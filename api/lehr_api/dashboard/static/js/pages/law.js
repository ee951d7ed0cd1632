/** The page of a law: what finished sweeps and runs say of a larger training. */

import { get, post } from "../api.js";
import { byId, dataTable, fill, h, input } from "../dom.js";
import { field } from "../form.js";
import * as f from "../format.js";
import { showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { evidence } from "../sweep/campaign.js";

/** The most sweeps that are offered. */
const OFFERED = 24;
const ABOUT = "From finished runs of at least two sizes (parameters or tokens), such as a sweep of the learning rate at each, it fits how the best loss and the best rate change with size, and says what a larger training will reach.";
const query = new URLSearchParams(location.search);
const refs = query.getAll("sweep").flatMap((text) => text.split(/[\s,]+/)).filter(Boolean);
const [target, parameters, tokens] = ["for", "parameters", "tokens"].map((name) => query.get(name) || null);
const [result, choices] = [h("div", { id: "law-result" }), h("div.bar")];
const names = input({ name: "sweep", value: refs.join(" "), required: true, size: 30, placeholder: "w64 w128 w256" });
/** Folded once there is a law: the picture comes first. */
const form = /** @type {HTMLDetailsElement} */ (h(
  "details", {}, h("summary.dim", {}, "Change what it learns from, and the training in question"),
  h("p.hint", {}, ABOUT),
  h(
    "form.bar", { action: "/law" }, field("sweeps and runs", names),
    field("for the run", input({ name: "for", value: target ?? "", size: 12, placeholder: "name or id" })),
    field("or for parameters", input({ name: "parameters", value: parameters ?? "", size: 8, placeholder: "1e9" })),
    field("and tokens", input({ name: "tokens", value: tokens ?? "", size: 8, placeholder: "20e9" })),
    h("button.main", {}, "Fit"),
  ),
  choices,
));
fill(byId("law"), h(
  "div.head-line.page-head", {}, h("span.crumbs", {}, h("a", { href: "/sweeps" }, "Sweeps"), " /"), h("h1", {}, "Law"),
  form,
), result);

/** Offer the sweeps that can be fitted. */
async function offer() {
  const { items } = await get("/sweeps", { limit: 200 });
  const known = items.filter((/** @type {import("../types.js").SweepView} */ one) => (
    one.best_value !== null && one.parameters.some((path) => /(^|[._])(lr|learning_rate)$/.test(path))
  )).slice(0, OFFERED);
  const draw = () => {
    const chosen = names.value.split(/[\s,]+/).filter(Boolean);
    fill(choices, known.length > 0 && "sweeps of a rate:", known.map(
      (/** @type {import("../types.js").SweepView} */ { id, name, project }) => {
        const on = [id, name].some((one) => chosen.includes(one));
        return h("button", { key: id, type: "button", "aria-pressed": String(on), title: `project ${project}`,
          onclick: () => {
            names.value = (on ? chosen.filter((one) => ![id, name].includes(one)) : [...chosen, name]).join(" ");
            draw();
          } }, name);
      },
    ));
  };
  names.oninput = draw;
  draw();
}

async function show() {
  const spec = target && (await get(`/runs/${encodeURIComponent(target)}`)).spec;
  const { metric, target: aim, beyond, runs, domain, figures, facts } = await post(
    "/sweeps/law", { refs, spec, parameters, tokens },
  );
  // Of a rate two digits are known.
  const said = (/** @type {string} */ name, /** @type {number} */ value) =>
    (name === metric ? f.metric(name, value) : f.specCell(Number(value.toPrecision(2)), name));
  const span = (/** @type {string} */ name, /** @type {number[]} */ ends) =>
    ends.map((one) => said(name, one)).join(" to ");
  const rows = [aim, beyond].map((one) => h("tr", { key: one.name }, h("td", {}, one.name), [
    f.si(one.parameters), f.si(one.tokens),
    ...[[metric, one.loss], ...Object.entries(one.best)].flatMap(([name, { value, likely, sure }]) =>
      [h("b", {}, said(name, value)), span(name, likely), span(name, sure)]),
  ].map((text) => h("td.num", {}, text))));
  const bests = Object.keys(aim.best);
  const heads = [metric, ...bests.map((path) => `best ${path.split(".").at(-1)}`)];
  const ranges = ["parameters", "tokens"].map(
    (name) => `${domain[name].map((/** @type {number} */ one) => f.si(one)).join(" to ")} ${name}`,
  );
  fill(
    result,
    h(
      "p.verdict", {}, `${aim.name} (${f.si(aim.parameters)} parameters, ${f.si(aim.tokens)} tokens): ${metric} `,
      h("b", {}, said(metric, aim.loss.value)), `, ${span(metric, aim.loss.likely)} with 68 %`,
      bests.map((path, i) => [`; ${heads[i + 1]} `, h("b", {}, said(path, aim.best[path].value)),
        `, ${span(path, aim.best[path].likely)}`]),
    ),
    h("p.hint", {}, `Learned from ${runs.length} runs: ${ranges.join(", ")}.`),
    evidence("", figures, []), aim.outside && h("p.hint", {}, aim.outside),
    dataTable("Predictions", [
      "", ".num parameters", ".num tokens", ...heads.flatMap((name) => [`.num ${name}`, ".num 68 %", ".num 95 %"]),
    ], rows),
    evidence("", {}, facts.slice(2 * (2 + bests.length))),
  );
}

installPage();
(refs.length ? show() : Promise.reject()).catch((error) => {
  form.open = true;
  if (error) showFailure(result, error);
  offer().catch((failure) => showFailure(choices, failure));
});
