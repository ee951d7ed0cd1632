/** Parse the filter: `state:running,failed -tag:old lr<1e-3 optimizer.name=muon /grid-\d/ words`. */

import { fromWire } from "../format.js";
import { nearest } from "../nearest.js";
/** @import { RunView } from "../types.js" */
/** @import { Configs } from "./configs.js" */

/** @type {Record<string, string>} */
const METRICS = { loss: "train/loss", val: "val/loss", mfu: "mfu", tok: "tokens_per_s" };
/** @type {Record<string, (run: RunView) => number | null>} */
const FIELDS = {
  step: (run) => run.step,
  gpus: (run) => run.gpus,
  nodes: (run) => run.nodes,
  attempt: (run) => run.attempt,
  eta: (run) => run.eta_s,
  params: (run) => run.parameters,
  alerts: (run) => run.alerts.length,
};

/**
 * Return the values that a key means for a run: several, where paths of its own config end alike.
 *
 * @param {RunView} run
 * @param {string} key in lower case
 * @param {Configs | null} configs
 * @returns {any[]} one null if the run has no value; one undefined if nothing has this name
 */
export function valuesOf(run, key, configs) {
  if (key in FIELDS) return [FIELDS[key](run)];
  const metric = METRICS[key] ?? key;
  const latest = (/** @type {(name: string) => boolean} */ is) =>
    run.latest[Object.keys(run.latest).find((name) => is(name.toLowerCase())) ?? ""];
  const exact = latest((name) => name === metric);
  if (exact) return [fromWire(exact.value)];
  if (key in METRICS) return [null];
  const other = configs?.metrics.get(run.id)?.get(key);
  if (other !== undefined) return [fromWire(other)];
  const paths = configs?.pathsIn(run.id, key) ?? [];
  if (paths.length) return paths.map((path) => configs?.value(run.id, path));
  const varied = Object.keys(run.parameters_varied)
    .find((path) => path.toLowerCase() === key || path.toLowerCase().endsWith(`.${key}`));
  if (varied) return [run.parameters_varied[varied]];
  if (configs?.pathsOf(key).length) return [null];
  // The last word of a metric, where no path of a config ends alike: `lr` is the configured one.
  const last = latest((name) => name.endsWith(`/${key}`));
  return [last ? fromWire(last.value) : undefined];
}

/** Return the first of these values. @param {RunView} run @param {string} key @param {Configs | null} configs */
export const valueOf = (run, key, configs) => valuesOf(run, key, configs)[0];

/**
 * Return whether a value is the wanted one: as a number, or as text without regard to case, where
 * `*` stands for anything.
 *
 * @param {any} got
 * @param {string} wanted
 * @param {number | null} number the wanted value as a number
 */
export function matches(got, wanted, number) {
  if (typeof got === "number" && number !== null) {
    return got === number || Math.abs(got - number) < 1e-9 * Math.abs(number);
  }
  const text = typeof got === "string" ? got : JSON.stringify(got);
  if (!wanted.includes("*")) return text.toLowerCase() === wanted.toLowerCase();
  const wildcard = wanted.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".*");
  return new RegExp(`^${wildcard}$`, "i").test(text);
}

/**
 * @typedef {(run: RunView, configs: Configs | null) => boolean} Test
 *
 * @typedef {object} Filter
 * @property {Record<string, unknown>} query filters that the server applies
 * @property {Test | null} test filter that is applied to the rows here
 * @property {string | null} problem
 * @property {string[]} keys keys that only the configs or the metrics of the runs may have
 */

const KEYS = ["project", "state", "tag", "sweep", "note", "archived", "name"];
const STATES = [
  "queued", "starting", "running", "stopping", "external", "paused", "completed", "failed", "cancelled", "pruned",
];
/** @type {Record<string, string>} */
const ALIASES = { waiting: "queued", waits: "queued", done: "completed", canceled: "cancelled" };
const NUMBER = /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?[kMGT]?$/i;
/** @type {Record<string, (value: number, limit: number) => boolean>} */
const COMPARED = { "<": (a, b) => a < b, ">": (a, b) => a > b, "<=": (a, b) => a <= b, ">=": (a, b) => a >= b };
/** @type {Record<string, number>} */
const UNITS = { k: 1e3, m: 1e6, g: 1e9, t: 1e12 };

/** @param {string} text @returns {number | null} */
export function numberOf(text) {
  if (!NUMBER.test(text)) return null;
  const unit = UNITS[text.slice(-1).toLowerCase()];
  return unit ? Number(text.slice(0, -1)) * unit : Number(text);
}

/**
 * Cut the line into parts. Spaces around an operator belong to it, and quotes keep words together.
 *
 * @param {string} text
 * @returns {string[]}
 */
export function parts(text) {
  const joined = text.replace(/([\w.)])\s*(<=|>=|!=|<|>|=)\s*(?=\S|$)/g, "$1$2").replace(/,\s+/g, ",");
  return joined.match(/(?:"[^"]*"?|[^\s"])+/g) ?? [];
}

/** The most completions. */
const MOST = 60;

/**
 * Return what may complete a part of the filter: a key, or a value that runs have.
 *
 * @param {string} text
 * @param {RunView[]} runs
 * @param {Configs} configs
 */
export function completions(text, runs, configs) {
  const [, not, bare = ""] = /^([-!]?)(.*)$/.exec(text) ?? [];
  const [, key, operator, wanted] = /^([\w./-]+?)(<=|>=|!=|<|>|=|:)(.*)$/.exec(bare) ?? [];
  const starts = (/** @type {string} */ one) => one.toLowerCase().includes((wanted ?? bare).toLowerCase());
  if (!key) {
    const last = new Set([...configs.paths].map((path) => path.split(".").at(-1) ?? path));
    const keys = [...KEYS.map((one) => `${one}:`), ...["loss", "val", ...Object.keys(FIELDS)].map((one) => `${one}<`)];
    return [...keys, ...[...last, ...configs.paths].map((one) => `${one}=`)].filter(starts).slice(0, MOST)
      .map((one) => `${not}${one}`);
  }
  const before = wanted.includes(",") ? wanted.slice(0, wanted.lastIndexOf(",") + 1) : "";
  const own = (/** @type {RunView} */ run) => (
    key === "tag" ? run.tags : key === "project" ? [run.project] : key === "name" ? [run.name]
      : valuesOf(run, key.toLowerCase(), configs)
  );
  const known = key === "state" ? STATES : key === "archived" ? ["yes"] : runs.flatMap(own);
  const values = known.filter((value) => value !== null && value !== undefined).map((value) => `${before}${value}`);
  return [...new Set(values)].filter(starts).slice(0, MOST)
    .map((value) => `${not}${key}${operator}${/\s/.test(value) ? `"${value}"` : value}`);
}

/**
 * @param {string} key
 * @param {string} operator
 * @param {string[]} wanted any of these
 * @returns {Test}
 */
function comparison(key, operator, wanted) {
  return (run, configs) => {
    const values = valuesOf(run, key, configs)
      .filter((value) => value !== null && value !== undefined && !Number.isNaN(value));
    const equal = () => values.some((value) => wanted.some((one) => matches(value, one, numberOf(one))));
    if (operator === "=" || operator === ":") return equal();
    if (operator === "!=") return values.length > 0 && !equal();
    const limit = numberOf(wanted[0]) ?? NaN;
    return values.some((value) => typeof value === "number" && COMPARED[operator](value, limit));
  };
}

/** @param {string} key @param {string[]} wanted @returns {Test} */
function ofView(key, wanted) {
  const lower = wanted.map((one) => one.toLowerCase());
  if (key === "state") return (run) => lower.includes(run.state);
  if (key === "tag") return (run) => run.tags.some((tag) => lower.includes(tag.toLowerCase()));
  // `note:~word` and `note:word` mean the same: part of the note.
  if (key === "note") return (run) => lower.some((one) => run.note.toLowerCase().includes(one));
  if (key === "project") return (run) => lower.includes(run.project.toLowerCase());
  if (key === "sweep") {
    return (run) =>
      run.sweep_id !== null
        && lower.some((one) => one === run.sweep_id || run.name.toLowerCase().startsWith(`${one}-`));
  }
  return (run) => lower.some((one) => run.name.toLowerCase().includes(one));
}

/** @param {string} word @returns {Test | string} a problem as text */
function pattern(word) {
  try {
    const found = new RegExp(word.slice(1, -1), "i");
    return (run) => found.test(run.name);
  } catch {
    return `${word} is not a regular expression.`;
  }
}

/** @param {string} text @returns {Filter} */
export function parseFilter(text) {
  /** @type {Record<string, any>} */
  const query = {};
  /** @type {Test[]} */
  const tests = [];
  /** @type {Map<string, string[]>} by key and sign: repeating a key means "or" */
  const chosen = new Map();
  const keys = new Set();
  const words = [];
  const wrong = (/** @type {string} */ problem) => ({ query, test: null, problem, keys: [] });
  for (const part of parts(text).map((one) => one.replaceAll('"', ""))) {
    const not = /^[-!](?=[a-z/])/i.test(part);
    const bare = not ? part.slice(1) : part;
    const add = (/** @type {Test} */ test) => tests.push(not ? (run, configs) => !test(run, configs) : test);
    if (/^\/.+\/$/.test(bare)) {
      const test = pattern(bare);
      if (typeof test === "string") return wrong(test);
      add(test);
      continue;
    }
    const split = /^([\w./-]+?)(<=|>=|!=|<|>|=|:)(.*)$/.exec(bare);
    if (!split) {
      if (not) add(ofView("name", [bare]));
      else words.push(bare);
      continue;
    }
    const [, given, operator, rest] = split;
    const key = given.toLowerCase();
    const wanted = rest.split(",").map((one) => (key === "note" ? one.replace(/^~/, "") : one)).filter(Boolean);
    if (!wanted.length) continue; // It is still being typed.
    const equal = operator === ":" || operator === "=";
    if (KEYS.includes(key) && (equal || operator === "!=")) {
      const values = key === "state" ? wanted.map((one) => ALIASES[one.toLowerCase()] ?? one.toLowerCase()) : wanted;
      const odd = key === "state" && values.find((one) => !STATES.includes(one));
      if (odd) return wrong(`${odd} is not a state. ${nearest(odd, STATES)}States: ${STATES.join(", ")}`);
      const place = `${not === equal ? "-" : ""}${key}`;
      chosen.set(place, [...(chosen.get(place) ?? []), ...values]);
      continue;
    }
    if (!equal && operator !== "!=" && numberOf(rest) === null) return wrong(`${bare}: ${rest} is not a number.`);
    keys.add(key);
    add(comparison(key, operator, wanted));
  }
  for (const [place, values] of chosen) {
    const key = place.replace("-", "");
    if (key === "archived") {
      query.archived = ["yes", "true", "1"].includes(values[0].toLowerCase()) !== place.startsWith("-");
    }
    else if (place === "state") query.state = values;
    else if (values.length === 1 && place !== "name" && !place.startsWith("-")) [query[key]] = values;
    else tests.push(place.startsWith("-") ? (run) => !ofView(key, values)(run, null) : ofView(key, values));
  }
  if (words.length) query.search = words.join(" ");
  return {
    query, test: tests.length ? (run, configs = null) => tests.every((test) => test(run, configs)) : null,
    problem: null, keys: [...keys],
  };
}

/**
 * Return what is wrong with the keys of a filter, now that the configs of the runs are known.
 *
 * @param {Filter} filter
 * @param {Iterable<RunView>} runs
 * @param {Configs} configs
 * @returns {string | null}
 */
export function unknownKey(filter, runs, configs) {
  const all = [...runs];
  if (!all.length) return null;
  const metrics = new Set(all.flatMap((run) => Object.keys(run.latest)));
  for (const key of filter.keys) {
    if (all.some((run) => valueOf(run, key, configs) !== undefined) || configs.pathsOf(key).length) continue;
    const known = [
      ...KEYS, "step", "gpus", "loss", "val", "mfu", "tok", ...metrics,
      ...[...configs.paths].map((path) => path.split(".").at(-1) ?? path), ...configs.paths,
    ];
    return `${key} is no key of the filter, no path of a config and no metric. ${nearest(key, known)}`.trim();
  }
  return null;
}
