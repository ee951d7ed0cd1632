"""Charts of several metrics, their code, their marks, their logarithmic axes; the table in several orders."""

from __future__ import annotations

import struct
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import expect

from .conftest import Visit, World

# Unit tests are in tests/javascript.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


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
