/** The runs that a fork comes from, nearest first. */

import { get } from "../api.js";

/** How many generations of forks are drawn. */
const MOST = 6;

/** @typedef {{id: string, flopsPerToken: number | null}} Ancestor */

/** @type {Map<string, Promise<{id: string, flopsPerToken: number | null, parent: string | null} | null>>} */
const known = new Map();

/** @param {string} id */
function read(id) {
  const found = known.get(id) ?? get(`/runs/${id}`).then(
    (run) => ({ id, flopsPerToken: run.flops_per_token, parent: run.forked_from }),
    // It was deleted, or the server is away: the fork's own curve is there all the same.
    (error) => {
      if (error.status !== 404) known.delete(id);
      return null;
    },
  );
  known.set(id, found);
  return found;
}

/**
 * @param {string | null | undefined} parent
 * @returns {Promise<Ancestor[]>}
 */
export async function ancestorsOf(parent) {
  /** @type {Ancestor[]} */
  const found = [];
  let next = parent ?? null;
  while (next && found.length < MOST) {
    const run = await read(next);
    if (!run) break;
    found.push(run);
    next = run.parent;
  }
  return found;
}
