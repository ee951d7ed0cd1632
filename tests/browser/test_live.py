"""End to end with real parts: a sweep trains, and the browser follows it to its best trial."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from lehr_testing.server import Server
from lehr_testing.specs import lr_sweep, text_corpus

from .conftest import Watch, log_in, new_context

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.xdist_group("platform"),
]

LAST_STEP = """() => document.querySelector('[data-metric="train/loss"] .plot')
    ?.figure?.traces.at(-1).x.at(-1) ?? 0"""
WITHIN_MS = 120_000


def grows_past(page: Page, step: float) -> float:
    page.wait_for_function(f"(step) => ({LAST_STEP})() > step", arg=step, timeout=WITHIN_MS)
    return page.evaluate(LAST_STEP)


@pytest.mark.nightly  # The parts are in test_login, test_live_page, test_sweep_page.
def test_a_real_sweep_is_followed_from_login_to_its_best_trial(
    server: Server, browser: Browser, tmp_path: Path
):
    corpus = text_corpus(tmp_path / "texts")
    seen_growing = tmp_path / "seen-growing"
    spec = lr_sweep(corpus, "live-grid", [1e-5, 3e-3], steps=150)
    spec["run"]["train"]["validation"]["every"] = 50
    spec["run"]["train"]["checkpoint"]["every"] = 75
    spec["run"]["env"] = {"PACE_S": "0.3", "PACE_UNTIL": str(seen_growing)}
    sweep = server.client().sweep(spec)
    url = f"http://127.0.0.1:{server.port}"
    context = new_context(browser)
    page = context.new_page()
    watch = Watch(url)
    watch.follow(page)
    log_in(page, url, (server.home / "token").read_text().strip())

    page.get_by_role("link", name="live-grid-2").click()
    expect(page.locator(".status-line").first).to_contain_text("running", timeout=WITHIN_MS)
    seen = grows_past(page, 0)
    last = grows_past(page, grows_past(page, seen))
    assert last < 150
    expect(page.get_by_role("log")).to_contain_text(re.compile(r"step \d+/150"))
    seen_growing.touch()

    page.get_by_role("link", name="live-grid", exact=True).click()
    expect(page.locator("#verdict")).to_contain_text(
        re.compile(r"^Best lr 3\.0e-3: val/loss \d\.\d+\.$"), timeout=2 * WITHIN_MS
    )
    expect(page.locator("#sweep-figure .label")).to_have_text("best 3.0e-3")
    assert sweep.wait(timeout_s=60).best().id == page.locator("tr.best").get_attribute("data-run")
    watch.assert_clean()
    context.close()
