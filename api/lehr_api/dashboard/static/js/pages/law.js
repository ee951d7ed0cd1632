/** The page of a law: what finished sweeps and runs say of a larger training. */

import { get, post } from "../api.js";
import { byId, fill, h, input } from "../dom.js";
import { field } from "../form.js";
import { showFailure } from "../notices.js";
import { installPage } from "../page.js";
import { evidence } from "../sweep/campaign.js";

const query = new URLSearchParams(location.search);
const refs = query.getAll("sweep").flatMap((text) => text.split(/[\s,]+/)).filter(Boolean);
const [target, parameters, tokens] = ["for", "parameters", "tokens"].map((name) => query.get(name) || null);
const result = h("div", { id: "law-result" });
fill(
  byId("law"),
  h("div.crumbs", {}, h("a", { href: "/sweeps" }, "Sweeps"), " / law"),
  h(
    "form.bar", { action: "/law" },
    field("sweeps and runs", input({ name: "sweep", value: refs.join(" "), required: true, size: 40 })),
    field("for the run", input({ name: "for", value: target ?? "", size: 12 })),
    field("or for parameters", input({ name: "parameters", value: parameters ?? "", size: 8, placeholder: "1e9" })),
    field("and tokens", input({ name: "tokens", value: tokens ?? "", size: 8, placeholder: "20e9" })),
    h("button.main", {}, "Fit"),
  ),
  result,
);

async function show() {
  const spec = target && (await get(`/runs/${encodeURIComponent(target)}`)).spec;
  const law = await post("/sweeps/law", { refs, spec, parameters, tokens });
  fill(result, evidence("", law.figures, law.facts));
}

installPage();
if (refs.length) show().catch((error) => showFailure(result, error));
