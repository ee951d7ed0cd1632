/** The differences between the code of two runs: the files that differ, and how. */

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { message } from "./notices.js";

/** @typedef {import("./types.js").CodeDiff} CodeDiff */

/** Lines of a unified diff, by how they begin. */
const LINES = /** @type {const} */ ([["+++", "file"], ["---", "file"], ["@@", "at"], ["+", "added"], ["-", "removed"]]);

/** @param {string} line */
const kindOf = (line) => LINES.find(([begin]) => line.startsWith(begin))?.[1] ?? "same";

/** @param {string} patch a unified diff */
const drawPatch = (patch) => h("pre.block.patch", { tabindex: "0" }, patch.split("\n").map(
  (line) => h(`span.patch-${kindOf(line)}`, {}, `${line}\n`)
));

/** @param {CodeDiff} diff */
function drawFiles({ changes }) {
  if (!changes.length) return h("p.hint", {}, "The files are the same.");
  return h(
    "div.code-files",
    {},
    changes.map((file) =>
      h(
        "details",
        { key: file.name },
        h("summary", {}, h("span.mono", {}, file.name), " ", h("span.dim", {}, file.change)),
        file.patch === null ? h("p.hint", {}, "Not text, or too large to show.") : drawPatch(file.patch),
      ),
    ),
  );
}

/**
 * Return the differences, folded: they are fetched when somebody opens them.
 *
 * @param {string} first a capsule or a run
 * @param {string} second
 * @param {string} title
 * @param {string | null} refused why the reader may not see them
 */
export function codeDiff(first, second, title, refused = null) {
  const place = h("div");
  const show = async () => {
    try {
      fill(place, drawFiles(await get(`/code/${first}/diff`, { other: second })));
    } catch (error) {
      fill(place, h("p.problem", { role: "alert" }, message(error)));
    }
  };
  const open = (/** @type {Event} */ event) => {
    if (/** @type {HTMLDetailsElement} */ (event.currentTarget).open && !place.childNodes.length) show();
  };
  if (refused !== null) fill(place, h("p.hint", {}, refused));
  return h("details.code-diff", { key: `${first} ${second}`, ontoggle: open }, h("summary", {}, title), place);
}
