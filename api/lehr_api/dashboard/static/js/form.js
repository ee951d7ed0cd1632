/** A dialog with fields. It stays open until its action succeeds. */

import { h } from "./dom.js";
import { message } from "./notices.js";

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
        h("div.actions", {}, h("button", { type: "button", onclick: () => dialog.close() }, "Back"), send),
      ),
    )
  );
  document.body.append(dialog);
  dialog.showModal();
}

/**
 * @param {string} label
 * @param {HTMLElement} control
 * @param {string} [hint]
 */
export const field = (label, control, hint) =>
  h("label.row", {}, label, " ", control, hint && [" ", h("span.hint", {}, hint)]);
