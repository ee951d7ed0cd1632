/** Drain a node or readmit it, and set until when it is available, from the cluster's page. */

import { post } from "../api.js";
import { h } from "../dom.js";
import { acts } from "../roles.js";
import { field, openForm } from "../form.js";
import { toast, tryTo } from "../notices.js";

/** @param {string} node @param {() => void} done */
function drain(node, done) {
  const reason = /** @type {HTMLInputElement} */ (h(
    "input", { type: "text", maxlength: 500, required: true, autocomplete: "off" },
  ));
  openForm({
    title: `Drain ${node}?`,
    about: "No new runs are placed on it. Its running runs continue until they end.",
    fields: [field("reason", reason, "shown beside the node")],
    yes: "Drain the node",
    act: async () => {
      await post(`/cluster/nodes/${encodeURIComponent(node)}/exclude`, { reason: reason.value });
      toast(`${node} gets no new runs.`);
      done();
    },
  });
}

/** @param {string} node @param {() => void} done */
const readmit = (node, done) =>
  tryTo(async () => {
    await post(`/cluster/nodes/${encodeURIComponent(node)}/readmit`);
    toast(`${node} can get new runs.`);
    done();
  });

/**
 * Return the button of a node; none for one that has left: it gets runs again when it joins.
 *
 * @param {import("../types.js").NodeView} node
 * @param {() => void} done called after it has acted
 */
export function drainButton(node, done) {
  if (node.left) return null;
  if (node.excluded !== null) {
    return h(
      "button", acts({ type: "button", onclick: () => readmit(node.name, done) }, "admin"), `Readmit ${node.name}`,
    );
  }
  return h("button", acts({ type: "button", onclick: () => drain(node.name, done) }, "admin"), `Drain ${node.name}`);
}

/** @param {import("../types.js").NodeView} node @param {() => void} done */
function setUntil(node, done) {
  const end = /** @type {HTMLInputElement} */ (h("input", { type: "datetime-local" }));
  openForm({
    title: `Until when is ${node.name} available?`,
    about: "Five minutes before, its trainings save, are queued again, and resume on other nodes. No run starts on it that would lose work.",
    fields: [field("until", end, "in the time zone of this browser; empty: it has no end")],
    yes: "Set",
    act: async () => {
      await post(`/cluster/nodes/${encodeURIComponent(node.name)}/until`, {
        until: end.value ? new Date(end.value).getTime() / 1000 : null,
      });
      toast(end.value ? `${node.name} is available until then.` : `${node.name} has no end.`);
      done();
    },
  });
}

/** @param {import("../types.js").NodeView} node @param {() => void} done called after it has acted */
export const untilButton = (node, done) =>
  node.left ? null : h(
    "button", acts({ type: "button", onclick: () => setUntil(node, done) }, "admin"), `Set the end of ${node.name}`,
  );
