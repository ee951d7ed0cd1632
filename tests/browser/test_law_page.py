"""The page of a law: of several sweeps, and with one clear error."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lehr_testing import laws

from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser


def test_law_of_several_sweeps_from_a_link_and_by_the_form(visit: Visit, lehr: Lehr):
    ids = {width: laws.swept(lehr.store, width) for width in laws.WIDTHS}
    page = visit.open(f"/sweeps/{ids[64]}")
    page.get_by_label("More actions").click()
    page.get_by_role("link", name="Law", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("there are 3 of 1 size")
    for name in ("w128", "w256"):
        page.get_by_role("button", name=name).click()
    expect(page.get_by_role("button", name="w64")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("sweeps and runs")).to_have_value(f"{ids[64]} w128 w256")
    page.get_by_label("or for parameters").fill("1e7")
    page.get_by_role("button", name="Fit").click()
    expect(page.locator("svg.figure")).to_have_count(2)
    expect(page.locator(".verdict")).to_contain_text("the target (10.0M parameters")
    expect(page.locator(".verdict")).to_contain_text(
        re.compile(r"val/loss [\d.]+, [\d.]+ to [\d.]+ with 68 %")
    )
    expect(page.get_by_text("Learned from 9 runs")).to_be_visible()
    expect(page.get_by_label("or for parameters")).to_be_hidden()
    rows = page.get_by_role("table", name="Predictions").locator("tbody tr")
    expect(rows).to_contain_text(["the target", "twice the largest run's size and tokens"])
    expect(page.locator("#law-result dl").last).not_to_contain_text("at its end")
    expect(page).to_have_url(re.compile("parameters=1e7"))
    visit.watch.console = [line for line in visit.watch.console if "422" not in line]
