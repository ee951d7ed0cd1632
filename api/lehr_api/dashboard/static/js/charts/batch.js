/**
 * Requests for the same thing of several runs, sent as one: most of what a request costs does not depend on its size.
 */

import { ApiError, get } from "../api.js";

/** Runs that one request asks for: the curves of the first ones arrive while the server reads the next ones. */
const MOST = 25;

/**
 * @typedef {object} Wanted what is asked of one run
 * @property {string} run
 * @property {number | null} from
 * @property {(found: any[]) => void} resolve
 * @property {(error: unknown) => void} reject
 */

/** @type {Map<string, {path: string, params: Record<string, any>, wanted: Wanted[]}>} */
const waiting = new Map();

/**
 * Ask for `/runs/RUN/PATH`, or, if the same is asked of other runs in the same moment, for all of them in `/PATH`.
 *
 * @param {string} path
 * @param {string} run
 * @param {Record<string, any>} params the same for all runs
 * @param {number | null} [from] this run's first x
 * @returns {Promise<any[]>} the answer of `/runs/RUN/PATH`; without the metrics that the run does not have
 */
export function ask(path, run, params, from = null) {
  const key = JSON.stringify([path, params, from !== null]);
  if (!waiting.size) setTimeout(send, 0);
  const batch = waiting.get(key) ?? { path, params, wanted: [] };
  waiting.set(key, batch);
  return new Promise((resolve, reject) => {
    batch.wanted.push({ run, from, resolve, reject });
  });
}

function send() {
  const batches = [...waiting.values()];
  waiting.clear();
  for (const { path, params, wanted } of batches) {
    for (let i = 0; i < wanted.length; i += MOST) fetchAll(path, params, wanted.slice(i, i + MOST));
  }
}

/**
 * @param {string} path
 * @param {Record<string, any>} params
 * @param {Wanted[]} wanted
 */
async function fetchAll(path, params, wanted) {
  try {
    if (wanted.length === 1) {
      const [{ run, from, resolve }] = wanted;
      resolve(await get(`/runs/${run}${path}`, { ...params, from }));
      return;
    }
    const found = await get(path, {
      ...params, run: wanted.map(({ run }) => run),
      from: wanted[0].from === null ? null : wanted.map(({ from }) => from),
    });
    for (const { run, resolve } of wanted) {
      const own = found.filter((/** @type {any} */ one) => one.run_id === run);
      resolve(path === "/metrics" ? own.flatMap((/** @type {any} */ one) => one.metrics) : own);
    }
  } catch (error) {
    // One run that is gone must not take the others along.
    if (wanted.length > 1 && error instanceof ApiError && error.status === 404) {
      for (const one of wanted) fetchAll(path, params, [one]);
    }
    else for (const { reject } of wanted) reject(error);
  }
}
