/** Python that reads what a chart shows: all points of its metrics, expressions or means. */

import { isExpression, parseExpression, partsOf, tokens } from "./expression.js";

/** @typedef {Pick<import("./chart.js").Line, "run" | "label" | "metric" | "members">} Drawn */

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

/**
 * Write the function that reads one curve of a run.
 *
 * @param {string} part a metric or an expression
 * @param {string} called
 * @returns {string[]}
 */
function reading(part, called) {
  const head = `def ${called}(run):`;
  if (!isExpression(part)) return [head, `    return lehr.Client().run(run).history(${quoted(part)}).set_index("step")[${quoted(part)}]`];
  return [
    head,
    `    h = lehr.Client().run(run).history(${listed(parseExpression(part).metrics)}).set_index("step")`,
    "    # At the steps of the sparsest metric that all have reached.",
    "    h = h.ffill().where(h.bfill().notna())[h[h.count().idxmin()].notna()].dropna()",
    `    return ${computed(part)}`,
  ];
}

const MEAN = [
  "def mean(curve, *runs):",
  "    h = pd.concat([curve(run) for run in runs], axis=1, keys=runs)",
  "    # At the steps of the run with the most points, and before and after it; of the runs that have a value there.",
  "    finest = h[h.count().idxmax()]",
  "    h = h.ffill().where(h.bfill().notna())[finest.notna() | finest.ffill().isna() | finest.bfill().isna()]",
  '    return h.agg(["mean", "min", "max"], axis=1)',
];

/** @param {string[]} parts @returns {string[]} a name of a function for each */
function functionsOf(parts) {
  if (parts.length === 1) return ["curve"];
  const names = parts.map((part) => part.replace(/\W+/g, "_").replace(/^_+|_+$/g, "").replace(/^(?=\d)/, "curve_"));
  return names.map((name, i) => (names.indexOf(name) === i ? name : `${name}_${i + 1}`));
}

/**
 * Return Python that reads the curves of a chart, without smoothing.
 *
 * @param {string} name of a metric, an expression, or several of them
 * @param {Drawn[]} lines
 */
export function pythonOf(name, lines) {
  const parts = partsOf(name);
  const means = lines.some(({ members }) => members);
  if (!means && !parts.some(isExpression)) {
    const read = `history(${listed(parts)})`;
    const ids = [...new Set(lines.map(({ run }) => run))];
    return ids.length === 1 ? `lehr.Client().run(${quoted(ids[0])}).${read}` : `[lehr.Client().run(one).${read} for one in (${listed(ids)})]`;
  }
  const functions = functionsOf(parts);
  const body = parts.map((part, i) => reading(part, functions[i]));
  const labels = lines.map(({ label }) => label);
  const key = (/** @type {Drawn} */ { label, run }) => quoted(labels.filter((one) => one === label).length > 1 ? `${label} (${run})` : label);
  const made = (/** @type {Drawn} */ { run, metric, members }) => {
    const called = functions[Math.max(0, parts.indexOf(metric ?? name))];
    return means ? `mean(${called}, ${listed(members ?? [run])})` : `${called}(${quoted(run)})`;
  };
  return [
    "import lehr",
    ...(body.flat().some((line) => line.includes("np.")) ? ["import numpy as np"] : []),
    ...(means ? ["import pandas as pd"] : []),
    ...[...body, ...(means ? [MEAN] : [])].flatMap((function_) => ["", "", ...function_]),
    "",
    "",
    "curves = {",
    ...lines.map((line) => `    ${key(line)}: ${made(line)},`),
    "}",
  ].join("\n");
}
