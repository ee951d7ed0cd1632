/** Python that reads what a chart shows: all points of its metric, expression or means. */

import { isExpression, parseExpression, tokens } from "./expression.js";

/** @typedef {Pick<import("./chart.js").Line, "run" | "label" | "members">} Drawn */

/** @param {string} text */
const quoted = (text) => JSON.stringify(text);

/** @param {string[]} ids */
const listed = (ids) => ids.map(quoted).join(", ");

/**
 * Write an expression over the columns of a frame `h`.
 *
 * @param {string} name
 */
function computed(name) {
  const list = tokens(name);
  let found = "";
  list.forEach((token, i) => {
    const call = /^[A-Za-z_]/.test(token) && list[i + 1] === "(";
    const word = call ? `np.${token}` : /^[A-Za-z_]/.test(token) ? `h[${quoted(token)}]` : token;
    const before = list[i - 1];
    // A sign belongs to what follows; an operator stands between spaces.
    const operator = /^[-+*/]$/.test(token) && i > 0 && !/^[-+*/(]$/.test(before);
    found += operator ? ` ${word} ` : word;
  });
  return found;
}

/** @param {string} name @returns {string[]} the function that reads one curve */
function reading(name) {
  if (!isExpression(name)) return ["def curve(run):", `    return lehr.Client().run(run).history(${quoted(name)}).set_index("step")[${quoted(name)}]`];
  return [
    "def curve(run):",
    `    h = lehr.Client().run(run).history(${listed(parseExpression(name).metrics)}).set_index("step")`,
    "    # At the steps of the sparsest metric that all have reached.",
    "    h = h.ffill().where(h.bfill().notna())[h[h.count().idxmin()].notna()].dropna()",
    `    return ${computed(name)}`,
  ];
}

const MEAN = [
  "def mean(*runs):",
  "    h = pd.concat([curve(run) for run in runs], axis=1, keys=runs)",
  "    # At the steps that all runs have reached.",
  "    h = h.ffill().where(h.bfill().notna())[h[h.count().idxmax()].notna()].dropna()",
  '    return h.agg(["mean", "min", "max"], axis=1)',
];

/**
 * Return Python that reads the curves of a chart, without smoothing.
 *
 * @param {string} name of a metric, or an expression
 * @param {Drawn[]} lines
 */
export function pythonOf(name, lines) {
  const means = lines.some(({ members }) => members);
  if (!means && !isExpression(name)) {
    const read = `history(${quoted(name)})`;
    return lines.length === 1 ? `lehr.Client().run(${quoted(lines[0].run)}).${read}` : `[lehr.Client().run(one).${read} for one in (${listed(lines.map(({ run }) => run))})]`;
  }
  const body = reading(name);
  const labels = lines.map(({ label }) => label);
  const key = (/** @type {Drawn} */ { label, run }) => quoted(labels.filter((one) => one === label).length > 1 ? `${label} (${run})` : label);
  return [
    "import lehr",
    ...(body.some((line) => line.includes("np.")) ? ["import numpy as np"] : []),
    ...(means ? ["import pandas as pd"] : []),
    "",
    "",
    ...body,
    ...(means ? ["", "", ...MEAN] : []),
    "",
    "",
    "curves = {",
    ...lines.map((line) => `    ${key(line)}: ${means ? "mean" : "curve"}(${listed(line.members ?? [line.run])}),`),
    "}",
  ].join("\n");
}
