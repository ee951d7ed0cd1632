"""The runs page as one live page: filter by any value, columns of what differs, curves beside the table."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from .conftest import Visit, World

pytestmark = pytest.mark.browser


def expect_filtered(page: Page, text: str, names: list[str]) -> None:
    page.get_by_role("combobox", name="Filter runs").fill(text)
    page.wait_for_function(
        """(wanted) => [...document.querySelectorAll("tbody tr[data-run] .col-name")]
            .map((cell) => cell.textContent).sort().join() === wanted""",
        arg=",".join(names),
    )


def test_filter_finds_runs_by_any_value_of_their_config(look: Visit, world: World):
    page = look.open("/?flat=1")
    expect_filtered(page, "lr=3e-4 state:completed,running", ["big-run", "lr-grid-2"])
    expect(page.locator("#runs-foot")).to_contain_text(re.compile(r"^2 of \d+ runs$"))
    expect_filtered(page, "train/loss < 5 -tag:omk", ["lr-grid-3", "lr-grid-4"])
    expect_filtered(page, "/grid-[12]/ -lr<2e-4", ["lr-grid-2"])
    expect_filtered(
        page, "optimizer.name=adamw name:lr-grid", [f"lr-grid-{n}" for n in range(1, 6)]
    )
    problem = page.get_by_role("alert")
    page.get_by_role("combobox", name="Filter runs").fill("lrr<1")
    expect(problem).to_contain_text("lrr is no key of the filter")
    expect(problem).to_contain_text("Did you mean lr?")
    page.get_by_role("combobox", name="Filter runs").fill("lr<fast")
    expect(problem).to_contain_text("fast is not a number")


def test_curves_beside_the_table_are_tied_to_its_rows(look: Visit, world: World):
    page = look.open("/?flat=1&filter=lr-grid&curves=1")
    lines = """() => document.querySelectorAll('[data-metric="train/loss"] .trace.line').length"""
    page.wait_for_function(f"() => ({lines})() >= 5")
    row = page.locator(f'tr[data-run="{world.runs["lr-grid-3"].id}"]')
    row.hover()
    near = page.locator('[data-metric="train/loss"] .trace.near')
    expect(near).to_have_count(1)
    plot = page.locator('[data-metric="train/loss"] .plot').bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] - 40)
    expect(page.locator("tr.lit")).to_have_count(1)
    expect(page.locator(".tip-row.near")).to_contain_text("lr 2.0e-3")
    expect(page.locator(".tip-step")).to_have_text(re.compile(r"^step \d+$"))
    page.get_by_role("button", name="Hide the curves of lr-grid-1").click()
    page.wait_for_function(f"() => ({lines})() === 4")
    expect(page).to_have_url(re.compile(f"hide={world.runs['lr-grid-1'].id}"))

    # Charts are found by a pattern, and computed from others.
    field = page.get_by_role("combobox", name="Find or add charts")
    field.fill("^val/")
    expect(page.locator(".chart h3")).to_have_text(["val/loss", "val/bits_per_byte"])
    field.fill("train/loss - nothing +")
    page.keyboard.press("Enter")
    expect(page.locator(".chart-search .problem")).to_contain_text("ends too early")
    field.fill("val/loss - train/loss")
    page.keyboard.press("Enter")
    computed = page.locator('[data-metric="val/loss - train/loss"]')
    expect(computed.locator(".read")).to_contain_text("0.04")
    expect(page).to_have_url(re.compile("expr="))

    # Each chart has its own scale, and its points as a file.
    chart = page.locator('[data-metric="train/loss"]')
    chart.locator("summary").click()
    chart.get_by_role("checkbox", name="log y").check()
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/loss"] .plot').figure.y.log """
    )
    assert chart.locator(".ytick").count() >= 3
    expect(page).to_have_url(re.compile("chart=train/loss:log"))
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    text = download.value.path().read_text().splitlines()
    assert text[0] == "run,label,step,x_step,train/loss"
    assert len(text) > 400
    with page.expect_download() as download:
        chart.get_by_role("button", name="SVG").click()
    drawn = download.value.path().read_text()
    # Other programs know neither the page's variables nor its themes.
    assert "rgb(" in drawn
    assert "var(" not in drawn
    assert "light-dark(" not in drawn

    # Where no run is listed, no curve is.
    page.get_by_role("combobox", name="Filter runs").fill("none-of-them")
    expect(page.locator("#runs-table")).to_contain_text("No run matches this filter")
    expect(page.locator("#runs-curves .trace.line")).to_have_count(0)
