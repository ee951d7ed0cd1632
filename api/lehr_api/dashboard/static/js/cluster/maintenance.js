/** The maintenance windows of the cluster's page: which there are, a new one, and their removal. */

import { post, remove } from "../api.js";
import { h, scrollable } from "../dom.js";
import { field, openForm } from "../form.js";
import * as f from "../format.js";
import { confirmed, toast, tryTo } from "../notices.js";
import { acts } from "../roles.js";
import { stateMark } from "../status.js";

/** @typedef {import("../types.js").MaintenanceView} MaintenanceView */

const HOUR_S = 3600;
/** @type {Record<MaintenanceView["state"], string>} the shape of each state */
const SHAPES = { open: "paused", coming: "queued", over: "completed" };

/**
 * Return the window that a node is in now.
 *
 * @param {MaintenanceView[]} windows
 * @param {string} node
 */
export const openWindow = (windows, node) => windows.find((one) => one.state === "open" && (one.node === null || one.node === node));

/** @param {MaintenanceView} one */
const nodesOf = (one) => one.node ?? "all nodes";

/**
 * Return the coming full hour, as a field for local times writes it.
 *
 * @param {Date} now
 */
export function nextHour(now) {
  const at = new Date(now.getFullYear(), now.getMonth(), now.getDate(), now.getHours() + 1);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}T${two(at.getHours())}:00`;
}

/** @param {string[]} nodes @param {() => void} done */
function declare(nodes, done) {
  const option = (/** @type {string} */ value, /** @type {string} */ text) => h("option", { value }, text);
  const node = /** @type {HTMLSelectElement} */ (h("select", {}, option("", "all nodes"), nodes.map((name) => option(name, name))));
  const begin = /** @type {HTMLInputElement} */ (h("input", { type: "datetime-local", required: true, value: nextHour(new Date()) }));
  const hours = /** @type {HTMLInputElement} */ (h("input", { type: "number", min: "0.1", max: "2160", step: "any", required: true, value: "4" }));
  const repeat = /** @type {HTMLSelectElement} */ (h("select", {}, option("", "once"), option("daily", "daily"), option("weekly", "weekly")));
  const note = /** @type {HTMLInputElement} */ (h("input", { type: "text", maxlength: "500", autocomplete: "off" }));
  openForm({
    title: "Declare maintenance",
    about: "At the begin, the runs on these nodes save, stop and are queued again, without spending a retry. Nothing starts there until the end. A window that has begun stops its runs at once.",
    fields: [
      field("nodes", node),
      field("from", begin, "in the time zone of this browser"),
      field("hours", hours),
      field("repeat", repeat, "a day always has 24 hours"),
      field("note", note, "shown in the reasons of waiting runs"),
    ],
    yes: "Declare",
    act: async () => {
      const made = await post("/maintenance", {
        starts_at: new Date(begin.value).getTime() / 1000,
        duration_s: Number(hours.value) * HOUR_S,
        node: node.value || null,
        repeat: repeat.value || null,
        note: note.value,
      });
      toast(`Maintenance ${made.id} of ${nodesOf(made)} is declared.`);
      done();
    },
  });
}

/** @param {MaintenanceView} one @param {() => void} done */
async function takeBack(one, done) {
  const sure = await confirmed({
    title: `Remove maintenance ${one.id}?`,
    body: h("p", {}, one.state === "open" ? `It is open. Its nodes (${nodesOf(one)}) are used again at once.` : `It is of ${nodesOf(one)}, from `, one.state !== "open" && f.time(one.starts_at), one.state !== "open" && "."),
    yes: "Remove",
    danger: true,
  });
  if (!sure) return;
  await tryTo(async () => {
    await remove(`/maintenance/${one.id}`);
    toast(`Maintenance ${one.id} is removed.`);
    done();
  });
}

/** @param {MaintenanceView[]} windows @param {() => void} done */
function windowsTable(windows, done) {
  const head = (/** @type {string} */ name) => h("th", { scope: "col" }, name);
  return scrollable(
    h(
      "table",
      { "aria-label": "Maintenance" },
      h("thead", {}, h("tr", {}, ["nodes", "state", "from", "to", "repeat", "note", "declared by"].map(head), h("th.shrink", { scope: "col" }, h("span.unseen", {}, "remove")))),
      h(
        "tbody",
        {},
        windows.map((one) =>
          h(
            "tr",
            { key: `window-${one.id}` },
            h("td", {}, nodesOf(one)),
            h("td", {}, stateMark(SHAPES[one.state], one.state)),
            h("td", {}, f.time(one.starts_at)),
            h("td", {}, f.time(one.ends_at)),
            h("td", {}, one.repeat ?? "once"),
            h("td.wrap", {}, one.note),
            h("td", {}, one.created_by),
            h("td", {}, h("button.quiet", acts({ type: "button", "aria-label": `Remove maintenance ${one.id}`, onclick: () => takeBack(one, done) }, "admin"), "Remove")),
          ),
        ),
      ),
    ),
  );
}

/**
 * Draw the windows, and the button for another one.
 *
 * @param {MaintenanceView[]} windows
 * @param {string[]} nodes names of the cluster's nodes
 * @param {() => void} done called after a window was declared or removed
 */
export const maintenancePart = (windows, nodes, done) =>
  h(
    "section.maintenance",
    { "aria-label": "Maintenance windows" },
    h("div.bar", {}, h("h2", {}, "Maintenance"), h("button", acts({ type: "button", onclick: () => declare(nodes, done) }, "admin"), "Declare maintenance")),
    windows.length ? windowsTable(windows, done) : h("p.hint", {}, "No maintenance is declared. In a window, runs on its nodes save and stop, and resume after it."),
  );
