/** Drain a node, or readmit it, from the cluster's page. */

import { post } from "../api.js";
import { h } from "../dom.js";
import { acts } from "../roles.js";
import { field, openForm } from "../form.js";
import { toast, tryTo } from "../notices.js";

/** @param {string} node @param {() => void} done */
function drain(node, done) {
  const reason = /** @type {HTMLInputElement} */ (h("input", { type: "text", maxlength: 500, required: true, autocomplete: "off" }));
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
  if (node.excluded !== null) return h("button", acts({ type: "button", onclick: () => readmit(node.name, done) }, "admin"), `Readmit ${node.name}`);
  return h("button", acts({ type: "button", onclick: () => drain(node.name, done) }, "admin"), `Drain ${node.name}`);
}
