"""Pages on paper: all charts, within the sheet, in light colours, without buttons."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Visit, World

pytestmark = pytest.mark.browser

A_PRINT_DIALOG = """window.print = () => {
  dispatchEvent(new Event("beforeprint"));
  const charts = [...document.querySelectorAll(".chart")].filter(chart => chart.checkVisibility());
  document.documentElement.dataset.printed = JSON.stringify({
    theme: document.documentElement.dataset.theme,
    drawn: charts.filter(chart => chart.querySelector(".chart-svg")).map(chart => chart.dataset.metric),
    missing: charts.filter(chart => !chart.querySelector(".chart-svg")).map(chart => chart.dataset.metric),
  });
  dispatchEvent(new Event("afterprint"));
}"""


@pytest.fixture
def paper(look: Visit):
    """Return a page in a window so low that it shows none of its charts."""
    look.page.set_viewport_size({"width": 1280, "height": 200})
    look.page.add_init_script(A_PRINT_DIALOG)
    return look.page


def printed(page: Page) -> dict:
    html = page.locator("html")
    expect(html).to_have_attribute("data-printed", re.compile("theme"))
    return json.loads(html.get_attribute("data-printed") or "")


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


@pytest.mark.parametrize("way", ["the button", "Ctrl+P"])
@pytest.mark.parametrize("what", ["sweep", "run", "compare"])
def test_charts_that_were_never_in_sight_are_printed(
    paper: Page, world: World, what: str, way: str
):
    run = world.runs["lr-grid-1"].id
    where = {
        "sweep": f"/sweeps/{world.sweep.id}",
        "run": f"/runs/{run}",
        "compare": f"/compare?runs={run},{world.runs['lr-grid-3'].id}",
    }
    paper.goto(world.lehr.url + where[what])
    chart = paper.locator('[data-metric="train/grad_norm"]')
    expect(chart).to_be_attached()
    expect(chart.locator(".chart-svg")).to_have_count(0)
    if way == "Ctrl+P":
        paper.keyboard.press("Control+p")
    else:
        paper.get_by_role("button", name="Print").click()
    found = printed(paper)
    assert {"train/loss", "val/loss", "tokens_per_s", "train/grad_norm"} <= set(found["drawn"])
    assert not found["missing"]
