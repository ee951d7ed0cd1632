"""Reports in a real browser: without a network, under a strict policy, on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from lehr import Client
from lehr_testing.api import TOKEN

from .conftest import World

# platform/report has the content; here a browser shows it.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]

HOSTILE = "<img/src=//a.org/x/onerror=document.title='owned'>"


@pytest.fixture
def reports(world: World, tmp_path: Path) -> dict[str, Path]:
    """Files written by the client: a run with a hostile tag, a sweep, a rollout."""
    client = Client(world.lehr.url, token=TOKEN)
    run = client.run("big-run").tag(HOSTILE)
    try:
        made = {
            "run": run.report(tmp_path / "run.html"),
            "sweep": client.find_sweep("lr-grid").report(tmp_path / "sweep.html"),
            "rollout": client.find_rollout("llama-1b").report(tmp_path / "rollout.html"),
        }
    finally:
        run.untag(HOSTILE)
    return made


def wide(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@pytest.mark.parametrize("width", [1400, 375])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_is_complete_without_a_network(
    reports: dict[str, Path], browser: Browser, width: int, scheme: str
):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    )
    try:
        page = context.new_page()
        said: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        for name, path in reports.items():
            asked.clear()
            page.goto(path.as_uri())
            expect(page.get_by_role("heading", level=1)).to_be_visible()
            assert asked == [path.as_uri()]
            assert said == []
            assert wide(page) <= 0
            if name != "rollout":
                assert page.locator("svg.figure").count() >= 2
            # The style sheet is allowed by its digest, so it applies.
            paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
            assert "owned" not in page.title()
        page.goto(reports["run"].as_uri())
        expect(page.locator(".state")).to_contain_text(HOSTILE)
    finally:
        context.close()
