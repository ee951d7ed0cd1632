/** Dialogs and menus, and buttons that change something: disabled for those whose role may not press them. */

import { h } from "./dom.js";
import { message } from "./notices.js";

/** In order: each may do what those before it may. */
const ROLES = ["viewer", "researcher", "admin"];

/**
 * Return why somebody may not do what needs a role; null if they may.
 *
 * @param {string} needed
 * @param {{role?: string, person?: string}} own of the token that the page was opened with
 */
export function refusal(needed, { role, person }) {
  // A page without a role comes from a server that does not send it: the answer decides.
  if (!role || ROLES.indexOf(role) >= ROLES.indexOf(needed)) return null;
  return `Needs the role ${needed}; your token${person ? ` ${person}` : ""} has the role ${role}.`;
}

/**
 * Return the props of a button that changes something: disabled for those who may not press it.
 *
 * @param {import("./patch.js").Props} props
 * @param {"researcher" | "admin"} [needed]
 * @returns {import("./patch.js").Props}
 */
export function acts(props, needed = "researcher") {
  const why = refusal(needed, document.documentElement.dataset);
  return why === null ? props : { ...props, disabled: true, title: why, onclick: null };
}

/**
 * @param {{title: string, about?: import("./dom.js").Child, fields: HTMLElement[], yes: string,
 *   act: () => Promise<unknown>}} options `act` throws on invalid input; the dialog shows the error and stays open
 */
export function openForm({ title, about, fields, yes, act }) {
  const problem = h("p.problem", { role: "alert", hidden: true });
  const send = /** @type {HTMLButtonElement} */ (h("button.main", {}, yes));
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    problem.hidden = true;
    send.disabled = true;
    try {
      await act();
      dialog.close();
    } catch (error) {
      problem.textContent = message(error);
      problem.hidden = false;
    } finally {
      send.disabled = false;
    }
  };
  const dialog = /** @type {HTMLDialogElement} */ (
    h(
      "dialog",
      { "aria-labelledby": "form-title", onclose: () => dialog.remove() },
      h(
        "form",
        { onsubmit: submit },
        h("h2", { id: "form-title" }, title),
        about && h("p.hint", {}, about),
        fields,
        problem,
        h("div.actions", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"), send),
      ),
    )
  );
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {string} label @param {HTMLElement} control @param {string} [hint] */
export const field = (label, control, hint) =>
  h("label.row", {}, label, " ", control, hint && [" ", h("span.hint", {}, hint)]);

/** @typedef {import("./dom.js").Child} Child */

/** Close the menu of a button, then act. @param {() => unknown} act */
export const closing = (act) => (/** @type {any} */ { currentTarget }) => {
  const menu = currentTarget.closest("details");
  if (menu) menu.open = false;
  act();
};

/** Make a word that opens what it stands for. @param {string} kind @param {Child} title @param {...Child} body */
export const chip = (kind, title, ...body) =>
  h(`details.menu.chip${kind}`, {}, h("summary", {}, h("span", {}, title)), h("div.menu-list", {}, body));

/** @param {Child[][]} rows those without a value are left out */
export const factList = (rows) =>
  h("dl.facts", {}, rows.map(([name, value]) => value && [h("dt", {}, name), h("dd", {}, value)]));
