"""The whole dashboard by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from lehr_testing.api import TOKEN

from .conftest import Watch, World, new_context
from .curves import wait_for_step

# The controls are of the pages' own tests; here the keyboard alone uses them.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until the selected element has the focus, and check that the focus is visible."""
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(s) => document.activeElement?.matches(s)", selector):
            outline = page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"the focus on {selector} cannot be seen"
            return
    raise AssertionError(f"Tab does not lead to {selector} on {page.url}")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_every_control_can_be_reached_by_keyboard(world: World, browser):
    context = new_context(browser)
    page = context.new_page()
    watch = Watch(world.lehr.url)
    watch.follow(page)
    page.goto(f"{world.lehr.url}/login?next=/?flat=1")
    page.keyboard.type(TOKEN)
    press(page, "Enter")
    rows = page.get_by_role("table", name="Runs")
    expect(rows).to_contain_text("big-run")

    press(page, "/")
    page.keyboard.type("big-run")
    expect(rows.locator("tbody tr[data-run]")).to_have_count(1)
    press(page, "Escape")
    tab_to(page, ".col-val .sort")
    press(page, "Enter")
    expect(page.locator("th.col-val")).to_have_attribute("aria-sort", "ascending")
    press(page, "j", "Enter")
    expect(page.get_by_role("heading", name="big-run")).to_be_visible()
    for number, tab in enumerate(("curves", "samples", "checkpoints", "logs", "config"), start=1):
        press(page, str(number))
        expect(page.locator(f"#tab-{tab}")).to_have_attribute("aria-selected", "true")
    tab_to(page, "#tab-config")
    press(page, "ArrowRight")
    expect(page.locator("#tab-events")).to_be_focused()
    press(page, "1")
    wait_for_step(page, "train/loss", 400)
    tab_to(page, ".toolbar .menu > summary")
    press(page, "Enter")
    tab_to(page, "[data-key=logy]")
    press(page, "Enter")
    expect(page).to_have_url(re.compile("logy=1"))
    tab_to(page, '[data-metric="train/loss"] .plot')
    press(page, "ArrowLeft", "+")
    expect(page).to_have_url(re.compile(r"range=\d+"))
    expect(page.get_by_role("button", name="Show all steps")).to_be_visible()
    expect(page.locator('[data-metric="train/loss"] .plot')).to_be_focused()
    press(page, "-")
    expect(page.get_by_role("button", name="Show all steps")).to_be_hidden()
    press(page, "Escape")

    press(page, "g", "s")
    expect(page.get_by_role("table", name="Runs")).to_contain_text("lr-grid")
    press(page, "j", "o")
    expect(page.locator("#verdict")).to_contain_text("Best lr")
    tab_to(page, ".eye")
    press(page, "Space")
    expect(page).to_have_url(re.compile("hide="))

    press(page, "g", "r")
    expect(rows).to_contain_text("lr-grid-1")
    press(page, "j", "x", "j", "x", "c")
    expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()
    tab_to(page, "input[aria-label='Add a run']")
    page.keyboard.type("lr-grid-2")
    press(page, "Enter")
    expect(page.get_by_role("heading", name="3 runs compared")).to_be_visible()

    press(page, "Escape", "g", "o")
    expect(page.get_by_role("table", name="Runs")).to_contain_text("llama-1b")
    press(page, "j", "o")
    expect(page.locator("#verdict")).to_contain_text("Stopped at stage 2")
    tab_to(page, ".stages button")
    press(page, "Enter")
    expect(page).to_have_url(re.compile("stage=cpu"))

    press(page, "g", "c")
    expect(page.get_by_role("region", name="Node n1")).to_be_visible()
    press(page, "?")
    expect(page.get_by_role("dialog")).to_contain_text("go to the cluster")
    press(page, "Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    tab_to(page, "#theme")
    watch.assert_clean()
    context.close()
