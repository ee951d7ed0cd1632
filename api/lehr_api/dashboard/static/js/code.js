/** The code that runs train with: the capsule of a run, and the files that differ between runs. */

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { factList, refusal } from "./form.js";
import * as f from "./format.js";
import { message } from "./notices.js";
/** @import { CapsuleView, CodeDiff, ComparisonView, RunDetail } from "./types.js" */

/** How lines of a unified diff look, by how they begin. */
const LINES = /** @type {const} */ ([["+++", ".dim"], ["---", ".dim"], ["@@", ".dim"], ["+", ".good"], ["-", ".bad"]]);

/** @param {string} line */
const lookOf = (line) => LINES.find(([begin]) => line.startsWith(begin))?.[1] ?? "";

/** @param {string} patch a unified diff */
const drawPatch = (patch) => h("pre.block.patch", { tabindex: "0" }, patch.split("\n").map(
  (line) => h(`span${lookOf(line)}`, {}, `${line}\n`)
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
        { key: file.name, open: changes.length === 1 },
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

const PROJECT = "project/";
const SHOWN = 12;

/** Count the files of a capsule by where they come from. @param {CapsuleView} capsule */
export function contents(capsule) {
  const own = capsule.files.filter((file) => file.name.startsWith(PROJECT)).length;
  const trainer = capsule.files.length - own;
  if (capsule.installed) return `${f.integer(trainer)} files: the trainer that is installed with the server`;
  return `${f.integer(capsule.files.length)} files: ${f.integer(trainer)} of the trainer, ${f.integer(own)} of the project`;
}

/**
 * Return the commands that compare the run's code, and write it into a folder.
 *
 * @param {Pick<RunDetail, "id" | "forked_from">} run
 */
export function commands(run) {
  return [`lehr code diff ${run.forked_from ?? "OTHER-RUN"} ${run.id}`, `lehr code checkout ${run.id} DIR`];
}

/** @param {RunDetail} run */
export function codePanel(run) {
  const digest = run.spec.code?.digest;
  if (!digest) return h("p.hint", {}, "This run has no capsule: an older Lehr recorded it.");
  const place = h("div.run-code");
  const show = async () => {
    try {
      const capsule = /** @type {CapsuleView} */ (await get(`/code/${digest}`));
      fill(
        place,
        factList([
          ["capsule", h("span.mono", { title: digest }, digest.slice(0, SHOWN))],
          ["contents", contents(capsule)],
          ["size", f.bytes(capsule.bytes)],
          ["commands", commands(run).map((line) => h("div.mono", {}, h("code", {}, line)))],
        ]),
        run.forked_from && h("div.code-differences", {}, codeDiff(
          run.forked_from, digest, `Differences from ${run.forked_from}, from which it was forked`,
        )),
      );
    } catch (error) {
      fill(place, h("p.hint", {}, `Capsule ${digest.slice(0, SHOWN)} cannot be shown: ${message(error)}`));
    }
  };
  show();
  return place;
}

/**
 * @typedef {object} Other a capsule that is not the baseline's
 * @property {string} digest
 * @property {string[]} runs those that have it
 */

const DIGEST = /^[0-9a-f]{64}$/;

/**
 * Return which other code the runs have than the baseline.
 *
 * @param {Pick<ComparisonView, "runs" | "differences">} comparison
 * @param {string} base id of the baseline
 * @returns {{base: string | null, others: Other[], without: string[]}} `base`: null if the baseline has no capsule;
 *   `without`: runs that have none
 */
export function otherCode({ runs, differences }, base) {
  const values = differences.find((one) => one.path === "code.digest")?.values ?? [];
  const digestOf = (/** @type {string} */ id) => {
    const value = values[runs.indexOf(id)];
    return typeof value === "string" && DIGEST.test(value) ? value : null;
  };
  const own = digestOf(base);
  /** @type {Map<string, string[]>} */
  const others = new Map();
  /** @type {string[]} */
  const without = [];
  for (const id of values.length ? runs : []) {
    const digest = digestOf(id);
    if (digest === null) without.push(id);
    else if (digest !== own) others.set(digest, [...(others.get(digest) ?? []), id]);
  }
  return { base: own, others: [...others].map(([digest, of]) => ({ digest, runs: of })), without };
}

/** Draws the differences of the code. What has been fetched and opened stays while the page is live. */
export class CodeDifferences {
  constructor() {
    this.element = h("div.code-differences", { id: "code" });
    const open = () => this.element.querySelector("details")?.setAttribute("open", "");
    this.chip = h("a.tag", { href: "#code", hidden: true, onclick: open });
    this.drawn = "";
  }

  /** @param {ComparisonView} comparison @param {string} base @param {(id: string) => string} name */
  draw(comparison, base, name) {
    const found = otherCode(comparison, base);
    const now = JSON.stringify([base, found, comparison.runs.map(name)]);
    if (now === this.drawn) return;
    this.drawn = now;
    fill(this.element, this.#parts(found, base, name));
    this.#count(found);
  }

  /** Say in short how much differs. @param {ReturnType<typeof otherCode>} found */
  async #count({ base: own, others: [other, ...rest], without }) {
    this.chip.hidden = !other && !without.length;
    this.chip.textContent = "code differs";
    if (!own || !other || rest.length || refusal("researcher", document.documentElement.dataset)) return;
    const { changes } = await get(`/code/${own}/diff`, { other: other.digest }).catch(() => ({ changes: [] }));
    const { length } = changes;
    if (length) this.chip.textContent = length === 1 ? "1 file differs" : `${length} files differ`;
  }

  /** @param {ReturnType<typeof otherCode>} found @param {string} base @param {(id: string) => string} name */
  #parts(found, base, name) {
    if (!found.others.length && !found.without.length) return h("p.hint", {}, "They have the same code.");
    const names = (/** @type {string[]} */ ids) => ids.map(name).join(", ");
    const refused = refusal("researcher", document.documentElement.dataset);
    const { base: own, others, without } = found;
    return [
      own === null
        ? h("p.hint", {}, `${name(base)} has no capsule, so its code cannot be compared.`)
        : others.map(({ digest, runs }) => codeDiff(own, digest, `${names(runs)} against ${name(base)}`, refused)),
      without.length > 0 && own !== null && h("p.hint", {}, `Without a capsule: ${names(without)}.`),
    ];
  }
}
