"""Charts of several metrics, their code, their marks, their logarithmic axes; the table in several orders."""

from __future__ import annotations

import re
import struct
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Page, expect

from .conftest import Visit, World

# Unit tests are in tests/javascript.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def add_chart(page: Page, text: str) -> None:
    page.get_by_role("textbox", name="Add a chart of an expression").fill(text)
    page.keyboard.press("Enter")


def test_several_metrics_share_a_chart(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    add_chart(page, "train/loss, val/loss")
    chart = page.locator('[data-metric="train/loss, val/loss"]')
    expect(chart.locator(".trace.line[data-run]")).to_have_count(2)
    colours = chart.locator(".trace.line[data-run]").evaluate_all(
        "(lines) => lines.map((line) => line.getAttribute('stroke'))"
    )
    assert len(set(colours)) == 2
    chart.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".tip-row")).to_have_count(2)
    expect(page.locator(".tip")).to_contain_text("val/loss")
    chart.locator("summary").click()
    chart.get_by_role("checkbox", name="log y").check()
    page.reload()
    expect(chart.locator(".trace.line[data-run]")).to_have_count(2)
    assert chart.locator(".plot").evaluate("(plot) => plot.figure.y.log")
    add_chart(page, "train/loss")
    expect(page.get_by_role("status").filter(has_text="One metric has its chart")).to_be_visible()


def test_chart_is_saved_as_a_picture_and_fills_the_screen(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    chart = page.locator('[data-metric="train/loss"]')
    expect(chart.locator(".trace").first).to_be_attached()
    chart.locator("summary").click()
    files = {}
    for name in ("SVG", "PNG"):
        with page.expect_download() as download:
            chart.get_by_role("button", name=name, exact=True).click()
        files[download.value.suggested_filename] = download.value.path().read_bytes()
    drawn = ET.fromstring(files["train-loss.svg"])
    assert "train/loss" in "".join(drawn.itertext())
    assert any(one.get("class") == "trace line" for one in drawn.iter())
    width, height = struct.unpack(">II", files["train-loss.png"][16:24])
    assert (width, height) == (2 * int(drawn.get("width")), 2 * int(drawn.get("height")))
    before = chart.locator(".plot").bounding_box()["width"]
    chart.get_by_role("button", name="Full screen").click()
    page.wait_for_function("() => document.fullscreenElement?.dataset.metric === 'train/loss'")
    page.wait_for_function(
        """(before) => {
          const plot = document.querySelector('[data-metric="train/loss"] .plot');
          return plot.figure.width > before && plot.figure.width === plot.clientWidth;
        }""",
        arg=before,
    )


def test_logarithmic_axis_says_what_it_cannot_show(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    add_chart(page, "train/loss - val/loss")
    chart = page.locator('[data-metric="train/loss - val/loss"]')
    chart.locator("summary").click()
    chart.get_by_role("checkbox", name="log y").check()
    note = chart.get_by_role("button", name="not logarithmic: no value above 0")
    expect(note).to_be_visible()
    note.click()
    expect(note).to_be_hidden()


def test_marks_show_why_it_resumed(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}?range=190-210")
    chart = page.locator('[data-metric="train/loss"]')
    expect(chart.locator(".mark").first).to_be_attached()
    chart.locator(".plot").focus()
    page.keyboard.press("ArrowLeft")
    for _ in range(25):
        if "step 200" in chart.locator(".read").inner_text():
            break
        page.keyboard.press("ArrowLeft")
    expect(page.locator(".tip-mark", has_text="resumes from step 200")).to_contain_text(
        ", after: node n1 was lost"
    )


def test_runs_are_sorted_by_several_columns(look: Visit):
    page = look.open("/?flat=1&filter=lr-grid&curves=0")
    head = page.locator("thead")
    head.get_by_role("button", name="state").click()
    head.get_by_role("button", name=re.compile("^lr")).click(modifiers=["Shift"])
    head.get_by_role("button", name=re.compile("^lr")).click(modifiers=["Shift"])
    names = ["lr-grid-4", "lr-grid-3", "lr-grid-2", "lr-grid-1", "lr-grid-5"]
    expect(page.locator("tbody tr[data-run] .col-name")).to_have_text(names)
    expect(head.get_by_role("button", name="state ↑1")).to_be_visible()
    expect(head.get_by_role("button", name="lr ↓2")).to_be_visible()
    page.reload()
    expect(page.locator("tbody tr[data-run] .col-name")).to_have_text(names)
