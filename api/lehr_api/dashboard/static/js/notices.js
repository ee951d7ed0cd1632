/** Toasts, errors in place of content, and confirmation dialogs. */

import { byId, fill, h } from "./dom.js";

const TOAST_MS = 8000;
const KEPT = "lehr.toast";

/** @param {string} text @param {{bad?: boolean}} [options] */
export function toast(text, options = {}) {
  const note = h(options.bad ? "div.toast.bad" : "div.toast", {}, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), TOAST_MS);
}

/** Show a toast on the next page that opens. @param {string} text */
export function toastNext(text) {
  sessionStorage.setItem(KEPT, text);
}

/** Show the toast that the previous page stored. */
export function showKept() {
  const text = sessionStorage.getItem(KEPT);
  if (text === null) return;
  sessionStorage.removeItem(KEPT);
  toast(text);
}

/** Perform an action, and show a toast if it fails. @param {() => Promise<unknown>} act @returns {Promise<boolean>} */
export async function tryTo(act) {
  try {
    await act();
    return true;
  } catch (error) {
    toast(message(error), { bad: true });
    return false;
  }
}

/** @param {unknown} error */
export function message(error) {
  if (!(error instanceof Error)) return String(error);
  const hint = /** @type {any} */ (error).hint;
  return hint ? `${error.message} ${hint}` : error.message;
}

/** Show an error in place of content that could not be loaded. @param {Element} place @param {unknown} error */
export function showFailure(place, error) {
  if (/** @type {any} */ (error)?.status === undefined) console.error(error);
  const hint = /** @type {any} */ (error)?.hint;
  fill(
    place,
    h(
      "div.failure", { role: "alert" }, h("p", {}, error instanceof Error ? error.message : String(error)),
      hint && h("p.dim", {}, hint),
    ),
  );
}

/** Show an empty state with a hint of what to do. @param {string} title @param {...import("./dom.js").Child} rest */
export function empty(title, ...rest) {
  return h("div.empty", {}, h("h2", {}, title), ...rest);
}

/**
 * Show a dialog.
 *
 * @param {string} title
 * @param {import("./dom.js").Child} body
 * @param {HTMLElement[]} buttons
 * @returns {Promise<string>} the value of the button that closed it
 */
function asked(title, body, ...buttons) {
  return new Promise((answer) => {
    const close = () => {
      answer(dialog.returnValue);
      dialog.remove();
    };
    const form = h(
      "form", { method: "dialog" }, h("h2", { id: "dialog-title" }, title), h("div", {}, body),
      h("div.actions", {}, buttons),
    );
    const dialog = /** @type {HTMLDialogElement} */ (h(
      "dialog", { "aria-labelledby": "dialog-title", onclose: close }, form,
    ));
    document.body.append(dialog);
    dialog.showModal();
  });
}

/**
 * @param {{title: string, body: import("./dom.js").Child, yes: string, danger?: boolean}} options
 * @returns {Promise<boolean>}
 */
export const confirmed = async ({ title, body, yes, danger = false }) =>
  (await asked(title, body, h("button", { value: "no" }, yes.startsWith("Cancel") ? "Keep" : "Cancel"), h(
    danger ? "button.danger" : "button.main", { value: "yes" }, yes,
  ))) === "yes";

/** Show something in a dialog that asks nothing. @param {string} title @param {import("./dom.js").Child} body */
export const inform = (title, body) => asked(title, body, h("button", {}, "Close"));
