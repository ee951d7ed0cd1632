/** Dialogs and menus, and buttons that change something: disabled for those whose role may not press them. */

import { post } from "./api.js";
import { h } from "./dom.js";
import { message, toast } from "./notices.js";
import { write } from "./urlstate.js";
/** @import { Child } from "./dom.js" */

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
 * Open a dialog.
 *
 * @param {string} title
 * @param {...import("./dom.js").Child} body
 * @returns {HTMLDialogElement}
 */
function opened(title, ...body) {
  const dialog = /** @type {HTMLDialogElement} */ (h(
    "dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() },
    h("h2", { id: "dialog-title" }, title), body,
  ));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Show something in a dialog that asks nothing. @param {string} title @param {import("./dom.js").Child} body */
export const inform = (title, body) => opened(
  title, h("div", {}, body), h("form.actions", { method: "dialog" }, h("button", {}, "Close")),
);

/**
 * Ask for what an action needs, or whether it is meant.
 *
 * @param {{title: string, about?: import("./dom.js").Child, fields: import("./dom.js").Child, yes: string,
 *   danger?: boolean, act: () => Promise<unknown>}} options `act` throws on invalid input; the dialog shows the error
 *   and stays open
 */
export function openForm({ title, about, fields, yes, danger = false, act }) {
  const problem = h("p.problem", { role: "alert", hidden: true });
  const send = /** @type {HTMLButtonElement} */ (h(danger ? "button.danger" : "button.main", {}, yes));
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
  const no = h(
    "button", { type: "button", onclick: () => dialog.close() }, yes.startsWith("Cancel") ? "Keep" : "Cancel",
  );
  const dialog = opened(title, h(
    "form", { onsubmit: submit }, about && h("p.hint", {}, about), fields, problem, h("div.actions", {}, no, send),
  ));
  // In a select Enter opens its list. What is dangerous is not done by Enter alone.
  const typed = /** @type {HTMLElement | null} */ (dialog.querySelector("input, textarea"));
  (typed ?? (danger ? no : send)).focus();
}

/** Have the server do something, and say so. @param {string} path @param {string} done @param {object} [body] */
export async function order(path, done, body) {
  await post(path, body);
  toast(done);
}

/** @param {string} label @param {HTMLElement} control a select with one option is text @param {string} [hint] */
export const field = (label, control, hint) => h(
  "label.row", {}, label, " ", control.childElementCount === 1 ? h("b", {}, control.textContent) : control,
  hint && [" ", h("span.hint", {}, hint)],
);

/**
 * Return a mark that hides the curves of something, or shows them; the address keeps it.
 *
 * @param {Set<string>} hidden ids of all whose curves are
 * @param {string} id
 * @param {string} name
 * @param {Child} mark
 * @param {() => void} onChange
 */
export const eye = (hidden, id, name, mark, onChange) => h(hidden.has(id) ? "button.eye.off" : "button.eye", {
  key: "eye", type: "button", "aria-pressed": String(!hidden.has(id)),
  "aria-label": `${hidden.has(id) ? "Show" : "Hide"} the curves of ${name}`, onclick: () => {
    if (!hidden.delete(id)) hidden.add(id);
    write({ hide: [...hidden].join(",") });
    onChange();
  },
}, mark);

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
