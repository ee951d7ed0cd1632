/** Toasts, errors in place of content, and empty states. */

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
