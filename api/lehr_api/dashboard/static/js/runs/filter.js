/** Parse the filter: `state:running project:omk lr<1e-3 words`. */

import { fromWire } from "../format.js";

/**
 * @typedef {object} Filter
 * @property {Record<string, unknown>} query filters that the server applies
 * @property {((run: import("../types.js").RunView) => boolean) | null} test filter that is applied to the rows here
 * @property {string | null} problem
 */

const KEYS = ["project", "state", "tag", "sweep", "note", "archived"];
const STATES = ["queued", "starting", "running", "stopping", "paused", "completed", "failed", "cancelled", "pruned"];
/** @type {Record<string, string>} */
const ALIASES = { waiting: "queued", waits: "queued", done: "completed" };
/** @type {Record<string, string>} */
const METRICS = { loss: "train/loss", val: "val/loss", mfu: "mfu", tok: "tokens_per_s" };

/**
 * Return a numeric field of a run by its short name.
 *
 * @param {import("../types.js").RunView} run
 * @param {string} key
 * @returns {number | null}
 */
function value(run, key) {
  if (key === "step") return run.step;
  if (key === "gpus") return run.gpus;
  if (METRICS[key]) return fromWire(run.latest[METRICS[key]]?.value ?? null);
  const path = Object.keys(run.parameters_varied).find((one) => one === key || one.endsWith(`.${key}`));
  return path ? fromWire(run.parameters_varied[path]) : null;
}

/**
 * @param {string} key
 * @param {string} operator
 * @param {number} limit
 * @returns {(run: import("../types.js").RunView) => boolean}
 */
function comparison(key, operator, limit) {
  return (run) => {
    const got = value(run, key);
    if (got === null || Number.isNaN(got)) return false;
    if (operator === "<") return got < limit;
    if (operator === ">") return got > limit;
    if (operator === "<=") return got <= limit;
    if (operator === ">=") return got >= limit;
    return got === limit;
  };
}

/**
 * @param {string} text
 * @returns {Filter}
 */
export function parseFilter(text) {
  /** @type {Record<string, any>} */
  const query = {};
  /** @type {((run: import("../types.js").RunView) => boolean)[]} */
  const tests = [];
  const words = [];
  for (const part of text.split(/\s+/).filter(Boolean)) {
    const compared = /^([\w./-]+?)(<=|>=|<|>|=)([-+.\deE]+)$/.exec(part);
    if (compared && Number.isFinite(Number(compared[3]))) {
      tests.push(comparison(compared[1], compared[2], Number(compared[3])));
      continue;
    }
    const colon = part.indexOf(":");
    if (colon < 1) {
      words.push(part);
      continue;
    }
    const key = part.slice(0, colon);
    const given = part.slice(colon + 1);
    if (!KEYS.includes(key)) {
      return { query, test: null, problem: `${key} is not a key of the filter. Keys: ${KEYS.join(", ")}; also loss<3, lr<1e-3.` };
    }
    if (!given) continue;
    if (key === "state") {
      const states = given.split(",").map((one) => ALIASES[one] ?? one);
      const wrong = states.find((one) => !STATES.includes(one));
      if (wrong) return { query, test: null, problem: `${wrong} is not a state. States: ${STATES.join(", ")}` };
      query.state = states;
    } else if (key === "note") {
      // `note:~word` and `note:word` mean the same: part of the note.
      query.note = given.replace(/^~/, "") || undefined;
    } else {
      query[key] = key === "archived" ? ["yes", "true", "1"].includes(given) : given;
    }
  }
  if (words.length) query.search = words.join(" ");
  return { query, test: tests.length ? (run) => tests.every((test) => test(run)) : null, problem: null };
}
