/** Saved views of the runs page: a menu of names; each is an address of the page. */

import { get, put, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { field, openForm } from "../form.js";
import { showFailure, tryTo } from "../notices.js";
import { acts } from "../roles.js";

/** @typedef {import("../types.js").SavedView} SavedView */

/** The view as it is now: the query of the address. */
const current = () => location.search.replace(/^\?/, "");

/**
 * Add the menu before an element.
 *
 * @param {HTMLElement} before
 */
export function installSavedViews(before) {
  const list = h("ul.plain", { "aria-label": "Saved views" });
  const menu = /** @type {HTMLDetailsElement} */ (h("details.menu.saved-views", {}, h("summary", {}, "Views"), h(
    "div.menu-list", {}, list, h("button", acts({ type: "button", onclick: () => save() }), "Save this view"),
  )));
  before.before(menu);

  /** @param {SavedView[]} views */
  const draw = (views) =>
    fill(
      list,
      views.length
        ? views.map((view) =>
            h(
              "li",
              {},
              h("a", { href: `/?${view.query}`, "aria-current": view.query === current() ? "true" : null }, view.name),
              h(
                "button.quiet",
                acts({ type: "button", "aria-label": `Remove the view ${view.name}`, onclick: () => tryTo(
                  async () => draw((await remove(`/views/${encodeURIComponent(view.name)}`)).views)
                ) }),
                "×",
              ),
            ),
          )
        : h("li.hint", {}, "None yet."),
    );
  const load = async () => {
    try {
      draw((await get("/views")).views);
    } catch (error) {
      showFailure(list, error);
    }
  };
  const save = () => {
    const input = /** @type {HTMLInputElement} */ (h(
      "input", { type: "text", maxlength: 60, autocomplete: "off", required: true },
    ));
    const query = current();
    openForm({
      title: "Save this view",
      about: "Filter, columns, sorting and groups, for everybody on this server.",
      fields: [field("name", input, "a view of that name is replaced")],
      yes: "Save",
      act: async () => {
        await put(`/views/${encodeURIComponent(input.value.trim())}`, { query });
        await load();
      },
    });
  };
  menu.addEventListener("toggle", () => menu.open && load());
}
