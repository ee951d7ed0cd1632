/** A table that draws only its visible rows. */

import { h } from "../dom.js";
import { keep, patch } from "../patch.js";

/** The usual height of a row. Larger text and narrow screens have another, which is measured. */
const ROW_PX = 33;
const SPARE = 16;
/** So many rows beyond the visible ones are enough: not each step of a scroll draws. */
const ENOUGH = 4;

/** @template Item */
export class Rows {
  /**
   * @param {HTMLElement} body the tbody
   * @param {{key: (item: Item) => string, row: (item: Item) => HTMLElement, same: (a: Item, b: Item) => boolean}}
   *   source `same`: whether the row of one may be kept for the other
   * @param {(drawn: Item[], atEnd: boolean) => void} onDraw called when rows were drawn; at the end the last ones are
   *   among them
   */
  constructor(body, source, onDraw) {
    this.body = body;
    this.source = source;
    this.onDraw = onDraw;
    /** @type {Item[]} */
    this.items = [];
    /** @type {Map<string, {row: HTMLElement, item: Item}>} */
    this.drawn = new Map();
    this.marked = -1;
    /** The run whose row is lit. @type {string | null} */
    this.lit = null;
    this.px = ROW_PX;
    /** @type {WeakSet<HTMLElement>} rows to draw again although their item is the same */
    this.stale = new WeakSet();
    /** The first drawn row and the one after the last; the items that they are of. */
    this.range = [0, 0];
    /** @type {Item[] | null} */
    this.of = null;
    this.before = keep(h("tr.spacer", { "aria-hidden": "true" }));
    this.after = keep(h("tr.spacer", { "aria-hidden": "true" }));
    this.asked = 0;
    /** Whether the next frame draws only if the end of the drawn rows is near. */
    this.ifNear = true;
    // Also of the room that the table scrolls in.
    addEventListener("scroll", () => this.soon(true), { passive: true, capture: true });
    addEventListener("resize", () => this.soon(), { passive: true });
  }

  /** Draw in the next frame; not while the page is hidden. @param {boolean} [ifNear] only if it is necessary */
  soon(ifNear = false) {
    this.ifNear &&= ifNear;
    this.asked ||= requestAnimationFrame(() => this.#draw());
  }

  /** @param {Item[]} items */
  set(items) {
    const marked = this.items[this.marked];
    this.items = items;
    if (marked) this.marked = items.findIndex((item) => this.source.key(item) === this.source.key(marked));
    this.soon();
  }

  /** Mark a row, which takes the focus: Enter then presses no button elsewhere. @param {number} index */
  mark(index) {
    this.marked = index;
    this.soon();
    this.#draw();
    /** @type {HTMLElement | null} */ (this.body.querySelector("tr.at"))?.focus({ preventScroll: true });
  }

  /** Light the row of a run, also while it is drawn again; null for none. @param {string | null} run */
  light(run) {
    this.lit = run;
    for (const { row } of this.drawn.values()) this.#light(row);
  }

  /** @param {HTMLElement} row */
  #light(row) {
    const { run, curves = "" } = row.dataset;
    row.classList.toggle("lit", this.lit !== null && (run === this.lit || curves.split(" ").includes(this.lit)));
  }

  /** Draw the row of an item again, if it is visible. @param {string} key */
  touch(key) {
    const drawn = this.drawn.get(key);
    if (!drawn) return;
    this.stale.add(drawn.row);
    this.soon();
  }

  /** Draw all rows again, after a change of columns. */
  renew() {
    for (const { row } of this.drawn.values()) this.stale.add(row);
    this.soon();
  }

  /** @param {number} index */
  scrollTo(index) {
    const top = this.body.getBoundingClientRect().top + index * this.px;
    const room = this.body.closest(".runs-room");
    const scroller = room && room.scrollHeight > room.clientHeight ? room : document.documentElement;
    const first = scroller === room ? room.getBoundingClientRect().top + 60 : 80;
    const last = innerHeight - 120;
    if (top < first || top > last) scroller.scrollTop += top - (top < first ? first : last);
    this.soon();
  }

  #draw() {
    const { ifNear } = this;
    [this.asked, this.ifNear] = [0, true];
    const top = -this.body.getBoundingClientRect().top;
    const within = (/** @type {number} */ spare) => [
      Math.max(0, Math.floor(top / this.px) - spare),
      Math.min(this.items.length, Math.ceil((top + innerHeight) / this.px) + spare),
    ];
    const [from, to] = within(ENOUGH);
    if (ifNear && this.of === this.items && from >= this.range[0] && to <= this.range[1]) return;
    const [first, last] = this.range = within(SPARE);
    this.of = this.items;
    const shown = this.items.slice(first, last);
    const made = shown.map((item) => {
      const old = this.drawn.get(this.source.key(item));
      const stands = old && this.source.same(old.item, item) && !this.stale.has(old.row);
      return stands ? old.row : this.source.row(item);
    });
    const rows = /** @type {HTMLElement[]} */ (patch(this.body, [this.before, ...made, this.after])).slice(1, -1);
    rows.forEach((row, i) => {
      this.stale.delete(row);
      row.setAttribute("aria-rowindex", String(first + i + 2));
      row.classList.toggle("at", first + i === this.marked);
      this.#light(row);
    });
    this.drawn = new Map(shown.map((item, i) => [this.source.key(item), { row: rows[i], item }]));
    this.before.style.height = `${first * this.px}px`;
    this.after.style.height = `${Math.max(0, this.items.length - last) * this.px}px`;
    if (rows.length) {
      const px = (
        rows[rows.length - 1].getBoundingClientRect().bottom - rows[0].getBoundingClientRect().top
      ) / rows.length;
      if (px > 0 && Math.abs(px - this.px) > 0.5) {
        this.px = px;
        this.soon();
      }
    }
    this.onDraw(shown, last >= this.items.length);
  }
}
