/** What the tests share: random input that is the same on every run, and what the API answers. */

import fc from "fast-check";

fc.configureGlobal({ seed: 20261122, numRuns: 300 });

export { fc };

/**
 * A run as the API answers it.
 *
 * @param {Partial<import("../../api/lehr_api/dashboard/static/js/types.js").RunDetail>} [changes]
 * @returns {any}
 */
export const run = (changes = {}) => ({ id: "r1", name: "run", state: "running", tags: [], note: "", project: "default", sweep_id: null, alerts: [], diagnosis: [], step: 10, total_steps: 100, gpus: 1, latest: {}, trend: [], parameters_varied: {}, ...changes });

/**
 * A trial of a sweep.
 *
 * @param {number} number
 * @param {Record<string, any>} [changes]
 * @returns {any}
 */
export const trial = (number, changes = {}) => ({ number, parameters: {}, run: run({ id: `r${number}` }), value: null, compared_value: null, rank: null, best: false, ...changes });

/**
 * A curve of these points, x being the step.
 *
 * @param {[number, number][]} points step and value
 * @returns {any}
 */
export const curve = (points) => ({ step: points.map(([step]) => step), x: points.map(([step]) => step), y: points.map(([, value]) => value), low: null, high: null, raw: null, superseded: [] });
