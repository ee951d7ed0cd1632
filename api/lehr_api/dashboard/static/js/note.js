/** The note of a run, sweep or rollout: in the head of its page, with a button to edit it. */

import { put } from "./api.js";
import { fill, h } from "./dom.js";
import { acts } from "./form.js";
import { tryTo } from "./notices.js";

const ADDRESS = /(https?:\/\/[^\s<>"]+[^\s<>".,;:!?)\]])/;

/**
 * Split a text at web addresses, which become links.
 *
 * @param {string} text
 * @returns {{text: string, href: string | null}[]}
 */
export const linked = (text) =>
  text.split(ADDRESS).map((part, i) => ({ text: part, href: i % 2 ? part : null })).filter((part) => part.text);

/**
 * Make the note of a page. It is edited in its place; a live update leaves what is being written.
 *
 * @param {HTMLElement} place
 * @returns {(path: string, of: {name: string, note: string}) => void} draws it if it has changed
 */
export function noteBox(place) {
  /** @type {string | null} */
  let drawn = null;
  const show = (/** @type {string} */ path, /** @type {{name: string, note: string}} */ of) => {
    if (of.note === drawn || place.querySelector("textarea")) return;
    drawn = of.note;
    const edit = () => {
      const save = (/** @type {FocusEvent} */ { relatedTarget }) => tryTo(async () => {
        const { note } = field.value === of.note ? of : await put(`${path}/note`, { note: field.value });
        field.remove();
        drawn = null;
        show(path, { ...of, note });
        if (!relatedTarget && document.activeElement === document.body) place.querySelector("button")?.focus();
      });
      const field = /** @type {HTMLTextAreaElement} */ (h("textarea", {
        rows: 1, maxlength: 10_000, value: of.note, "aria-label": `Note on ${of.name}`, onblur: save,
        placeholder: "plain text; the filter finds it as note:word",
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
          if (event.key === "Escape") field.value = of.note;
          if (event.key !== "Enter" || event.shiftKey) return;
          event.preventDefault();
          field.blur();
        },
      }));
      fill(place, field);
      field.focus();
    };
    fill(
      place,
      of.note && h("p.note-text", { title: of.note }, linked(of.note).map(
        (part) => (part.href ? h("a", { href: part.href, rel: "noreferrer noopener" }, part.text) : part.text)
      )),
      h("button.quiet", acts({ type: "button", onclick: edit }), of.note ? "Edit note" : "Add a note"),
    );
  };
  return show;
}
