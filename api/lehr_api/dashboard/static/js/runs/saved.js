/** Views that this browser keeps by a name: addresses of the runs page and of comparisons. */

import { h } from "../dom.js";
import { memory } from "../urlstate.js";

/**
 * Make a form of one field that hands on what was typed.
 *
 * @type {(label: string, placeholder: string, act: (text: string) => void, more?: object) => HTMLElement}
 */
export const asking = (label, placeholder, act, more = {}) => h(
  "form", { key: label, onsubmit: (/** @type {any} */ event) => {
    event.preventDefault();
    const field = event.currentTarget.elements[0];
    if (field.value.trim()) act(field.value.trim());
    field.value = "";
  } },
  h("input", { type: "text", "aria-label": label, placeholder, spellcheck: "false", ...more }),
);

/** @param {string} name @param {string} title @param {...import("../dom.js").Child} children */
export const menu = (name, title, ...children) => h(
  "details.menu", { key: name }, h("summary", {}, title), h("div.menu-list", {}, children),
);

/** @param {HTMLElement} part @param {string} name @param {() => void} onRemove */
export const removable = (part, name, onRemove) => h("span.part", { key: name }, part, h(
  "button", { key: "out", type: "button", "aria-label": `Remove ${name}`, onclick: onRemove }, "×",
));

/** Offer them, and to save the address as one of them. @param {() => void} redraw called when they have changed */
export function savedViews(redraw) {
  /** @type {Record<string, string>} */
  const views = memory.get("views", {});
  const keep = (/** @type {Record<string, string>} */ next) => {
    memory.set("views", next);
    redraw();
  };
  return [
    h("b", { key: "views" }, "saved views"),
    Object.entries(views).map(([name, search]) => removable(
      h("a.button", { href: search.startsWith("/") ? search : `/${search}` }, name), name,
      () => keep(Object.fromEntries(Object.entries(views).filter(([other]) => other !== name))),
    )),
    asking(
      "Save this view", "save this view as",
      (name) => keep({ ...views, [name]: location.pathname + location.search }),
    ),
  ];
}
