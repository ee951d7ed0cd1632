/** What went wrong or needs a yes: toasts, failures in place, dialogs. */

import { byId, fill, h } from "./dom.js";

const TOAST_MS = 8000;
const KEPT = "lehr.toast";

/**
 * @param {string} text
 * @param {{bad?: boolean}} [options]
 */
export function toast(text, options = {}) {
  const note = h(options.bad ? "div.toast.bad" : "div.toast", {}, text);
  byId("toasts").append(note);
  setTimeout(() => note.remove(), TOAST_MS);
}

/**
 * The same on the page that opens next.
 *
 * @param {string} text
 */
export function toastNext(text) {
  sessionStorage.setItem(KEPT, text);
}

/** Say what the page before left to say. */
export function showKept() {
  const text = sessionStorage.getItem(KEPT);
  if (text === null) return;
  sessionStorage.removeItem(KEPT);
  toast(text);
}

/**
 * Does it, and says so if it could not be done.
 *
 * @param {() => Promise<unknown>} act
 * @returns {Promise<boolean>}
 */
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

/**
 * A failure in the place of what could not be shown.
 *
 * @param {Element} place
 * @param {unknown} error
 */
export function showFailure(place, error) {
  if (error instanceof DOMException && error.name === "AbortError") return;
  if (/** @type {any} */ (error)?.status === undefined) console.error(error);
  const hint = /** @type {any} */ (error)?.hint;
  fill(
    place,
    h("div.failure", { role: "alert" }, h("p", {}, error instanceof Error ? error.message : String(error)), hint && h("p.dim", {}, hint)),
  );
}

/**
 * An empty state that says what to do.
 *
 * @param {string} title
 * @param {...import("./dom.js").Child} rest
 */
export function empty(title, ...rest) {
  return h("div.empty", {}, h("h2", {}, title), ...rest);
}

/**
 * @param {{title: string, body: import("./dom.js").Child, yes: string, danger?: boolean}} options
 * @returns {Promise<boolean>}
 */
export function confirmed({ title, body, yes, danger = false }) {
  return new Promise((answer) => {
    const dialog = /** @type {HTMLDialogElement} */ (
      h(
        "dialog",
        { "aria-labelledby": "dialog-title", onclose: () => {
          answer(dialog.returnValue === "yes");
          dialog.remove();
        } },
        h(
          "form",
          { method: "dialog" },
          h("h2", { id: "dialog-title" }, title),
          h("div", {}, body),
          h(
            "div.actions",
            {},
            h("button", { value: "no" }, "Back"),
            h(danger ? "button.danger" : "button.main", { value: "yes" }, yes),
          ),
        ),
      )
    );
    document.body.append(dialog);
    dialog.showModal();
  });
}
