"""Live pages are drawn in place: focus, selected text, hover and open parts survive an update."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from lehr_testing import seeding

from .conftest import Lehr, Visit
from .curves import wait_for_step

# Unit tests of the drawing are in tests/javascript.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]

DRAW_TWICE = """async (address) => {
  const {fill, h, mount} = await import(address);
  const room = document.body.appendChild(document.createElement("div"));
  let clicks = [];
  const mine = h("div", {}, "mine");
  const draw = (names, n) => fill(room,
    n > 1 && h("p.alert", {}, "an alert"),
    h("p.text", {title: n === 1 ? "first" : null}, "step ", h("b", {}, String(n)), " of 9"),
    h("input", {type: "text", value: "typed by the page"}),
    h("details", {open: false}, h("summary", {}, "more")),
    h("select", {value: n === 1 ? "a" : "b"}, ["a", "b"].map((one) => h("option", {value: one}, one))),
    h("ul", {}, names.map((name) => h(n === 1 ? "li" : "li.new", {key: name}, h("button", {onclick: () => clicks.push(`${name}${n}`)}, name)))),
  );
  draw(["x", "y", "z"], 1);
  const find = (selector) => room.querySelector(selector);
  const button = (name) => [...room.querySelectorAll("button")].find((one) => one.textContent === name);
  const before = {text: find("p.text").firstChild, bold: find("b"), z: button("z")};
  before.z.focus();
  find("details").open = true;
  find("input").value = "typed by the user";
  getSelection().selectAllChildren(find("p.text"));
  draw(["z", "x", "new"], 2);
  button("z").click();
  const found = {
    sameText: find("p.text").firstChild === before.text, sameBold: find("b") === before.bold,
    bold: find("b").textContent, title: find("p.text").getAttribute("title"),
    focus: document.activeElement === before.z, open: find("details").open,
    selected: String(getSelection()), order: [...room.querySelectorAll("li")].map((li) => li.textContent),
    classes: find("li").className, clicks, select: find("select").value, alert: find(".alert")?.textContent,
  };
  find("input").focus();
  draw(["z"], 3);
  found.typed = find("input").value;
  mount(room, mine);
  fill(room, h("div", {}, "of a drawing"));
  found.mine = mine.textContent;
  found.room = room.textContent;
  room.remove();
  return found;
}"""


def test_second_drawing_changes_only_what_differs(visit: Visit):
    address = visit.page.evaluate(
        """() => performance.getEntriesByType("resource").map((one) => one.name)
            .find((name) => name.endsWith("/js/dom.js"))"""
    )
    found = visit.page.evaluate(DRAW_TWICE, address)
    assert found == {
        "sameText": True,
        "sameBold": True,
        "bold": "2",
        "title": None,
        "focus": True,
        "open": True,
        "selected": "step 2 of 9",
        "order": ["z", "x", "new"],
        "classes": "new",
        "clicks": ["z2"],
        "select": "b",
        "alert": "an alert",
        "typed": "typed by the user",
        "mine": "mine",
        "room": "of a drawing",
    }


def read_of(page: Page, metric: str) -> str:
    return page.locator(f'[data-metric="{metric}"] .read').inner_text()


def hover(page: Page, metric: str) -> None:
    page.wait_for_function(
        """(name) => document.querySelector(`[data-metric="${name}"] .chart-svg`)""", arg=metric
    )
    plot = page.locator(f'[data-metric="{metric}"] .plot')
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)


def test_cursor_and_selected_text_stay_on_a_live_run(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live", steps=1000))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 101))
    attempt.checkpoint(51)
    page = visit.open(f"/runs/{run.id}")
    cursor = page.locator('[data-metric="train/loss"] .cursor')
    hover(page, "train/loss")
    expect(cursor).to_have_class("cursor on")
    page.evaluate(
        "() => getSelection().selectAllChildren(document.querySelector('#run-head .mono'))"
    )
    page.get_by_role("button", name="Add tags").focus()
    for step in range(101, 104):
        attempt.train([step])
        expect(page.locator(".status-line").first).to_contain_text(f"step {step}")
        wait_for_step(page, "train/loss", step)
        expect(cursor).to_have_class("cursor on")
        assert " step " in read_of(page, "train/loss")
    assert page.evaluate("String(getSelection())") == run.id
    expect(page.get_by_role("button", name="Add tags")).to_be_focused()

    # A chart without a point there shows its value so far, and its cursor stands where the others do.
    at = page.evaluate(
        """() => ["train/loss", "val/loss"].map((name) =>
            document.querySelector(`[data-metric="${name}"] .cursor`).className)"""
    )
    assert at == ["cursor on", "cursor on"]

    # A click holds the cursor; the arrow keys walk; Escape lets it go.
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(5, 5)
    expect(cursor).to_have_class("cursor on")
    held = read_of(page, "train/loss")
    page.locator('[data-metric="train/loss"] .plot').focus()
    page.keyboard.press("ArrowRight")
    step = int(held.split("step ")[1].replace(",", ""))
    assert f"step {step + 1}" in read_of(page, "train/loss")
    while "step 51" not in read_of(page, "train/loss"):
        page.keyboard.press("ArrowLeft" if step > 51 else "ArrowRight")
    expect(page.locator(".tip")).to_contain_text("step 51: checkpoint saved")
    page.keyboard.press("Escape")
    expect(cursor).to_have_class("cursor")
