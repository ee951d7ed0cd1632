/** The note of a run, sweep or rollout: below the head of its page, with a button to edit it. */

import { put } from "./api.js";
import { fill, h } from "./dom.js";
import { acts, field, openForm } from "./form.js";

const ADDRESS = /(https?:\/\/[^\s<>"]+[^\s<>".,;:!?)\]])/;

/**
 * Split a text at web addresses, which become links.
 *
 * @param {string} text
 * @returns {{text: string, href: string | null}[]}
 */
export const linked = (text) =>
  text.split(ADDRESS).map((part, i) => ({ text: part, href: i % 2 ? part : null })).filter((part) => part.text);

/** @param {string} path @param {{name: string, note: string}} of @param {(note: string) => void} done */
function edit(path, of, done) {
  const input = /** @type {HTMLTextAreaElement} */ (h("textarea", { rows: 8, maxlength: 10_000, value: of.note }));
  openForm({
    title: `Note on ${of.name}`,
    fields: [field("note", input, "plain text; the filter finds it as note:word")],
    yes: "Save",
    act: async () => done((await put(`${path}/note`, { note: input.value })).note),
  });
}

/**
 * Put the note below a page's head, outside of what is drawn again.
 *
 * @param {HTMLElement} head
 * @returns {(path: string, of: {name: string, note: string}) => void} draws it if it has changed
 */
export function noteBox(head) {
  const place = h("div.note-box");
  head.after(place);
  /** @type {string | null} */
  let drawn = null;
  const show = (/** @type {string} */ path, /** @type {{name: string, note: string}} */ of) => {
    if (of.note === drawn) return;
    drawn = of.note;
    fill(
      place,
      of.note && h("p.note-text", {}, linked(of.note).map(
        (part) => (part.href ? h("a", { href: part.href, rel: "noreferrer noopener" }, part.text) : part.text)
      )),
      h(
        "button.quiet", acts({ type: "button", onclick: () => edit(path, of, (note) => show(path, { ...of, note })) }),
        of.note ? "Edit note" : "Add a note",
      ),
    );
  };
  return show;
}
