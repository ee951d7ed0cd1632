"""The comparison page: differences of the code, and how the page prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from lehr_testing import seeding

from .code_runs import expect_patch, with_code
from .conftest import Lehr, Visit, World, visiting

pytestmark = pytest.mark.browser


def compared(lehr: Lehr, folder: Path, name: str, text: str) -> str:
    """Create a run that has trained with such a train.py; return its id."""
    run = with_code(lehr, folder, name, text)
    seeding.start(lehr.store, run).train(range(1, 11))
    return run.id


def test_files_that_differ_from_the_baselines_are_shown_with_their_diff(
    visit: Visit, lehr: Lehr, tmp_path: Path
):
    first = compared(lehr, tmp_path / "1", "first", "steps = 10\n")
    same = compared(lehr, tmp_path / "2", "same", "steps = 10\n")
    other = compared(lehr, tmp_path / "3", "other", "steps = 20\n")
    page = visit.open(f"/compare?runs={first},{same},{other}&metric=train/loss")
    summary = page.get_by_text("other against first")
    expect(page.locator(".code-diff")).to_have_count(1)
    expect(page.get_by_text("project/train.py", exact=True)).to_be_hidden()
    assert not any("/diff?" in path for path in visit.watch.requests), "fetched unasked"
    summary.click()
    expect_patch(page)

    page.goto(f"{visit.url}/compare?runs={first},{same}&metric=train/loss")
    expect(page.get_by_text("They have the same code.")).to_be_visible()


def compare(page: Page, world: World) -> None:
    ids = ",".join(world.runs[f"lr-grid-{n}"].id for n in (1, 3))
    page.goto(f"{world.lehr.url}/compare?runs={ids}")
    expect(page.get_by_role("table", name="Results")).to_contain_text("val/loss at step 200")


def test_comparison_prints_without_its_controls(look: Visit, world: World):
    page = look.page
    compare(page, world)
    chart = page.locator('[data-metric="val/loss"]').first
    expect(chart.locator("svg.chart-svg")).to_be_visible()
    look.page.emulate_media(media="print")
    for hidden in (".toolbar", ".row-actions button", ".top", ".chart-search", ".page-head .bar"):
        assert page.locator(hidden).count(), hidden
        expect(page.locator(hidden).first).to_be_hidden()
    expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()
    expect(chart.locator("svg.chart-svg")).to_be_visible()
    left = "cells => cells.filter(c => c.offsetParent).map(c => Math.round(c.getBoundingClientRect().x))"
    results = page.get_by_role("table", name="Results")
    heads = results.locator("thead th").evaluate_all(left)
    assert heads == results.locator("tbody tr").first.locator("td").evaluate_all(left)
    # A sheet is narrower than the window, and the charts are not drawn again for it.
    right, drawn_to = chart.evaluate(
        """chart => {
          chart.style.width = "200px";
          return [chart, chart.querySelector(".chart-svg")].map(e => e.getBoundingClientRect().right);
        }"""
    )
    assert drawn_to <= right


def test_dark_page_prints_in_light_colours(world: World, browser):
    with visiting(browser, world.lehr.url, dark=True) as visit:
        page = visit.page
        page.add_init_script(
            """window.print = () => {
              dispatchEvent(new Event("beforeprint"));
              window.printed = document.documentElement.dataset.theme;
              dispatchEvent(new Event("afterprint"));
            }"""
        )
        compare(page, world)
        page.get_by_role("button", name="Print").click()
        assert page.evaluate("window.printed") == "light"
        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
