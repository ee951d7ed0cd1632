"""Rules for every page: the policy, the theme, small screens, accessibility."""

from __future__ import annotations

import http.client
import re
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute
from playwright.sync_api import Browser, Page, expect

from lehr.base.bundle import BundleWriter
from lehr.specs.examples import RECORDED
from lehr_api.dashboard.pages import router

from .conftest import Visit, World, visiting

pytestmark = pytest.mark.browser


def pages(world: World) -> dict[str, str]:
    """Every page, each by an address that shows much of it."""
    big = world.runs["big-run"].id
    trials = ",".join(world.runs[f"lr-grid-{n}"].id for n in (1, 3, 5))
    tabs = ("samples", "checkpoints", "logs", "config", "events", "system")
    return {
        "runs": f"/?open={world.sweep.id}",
        "run": f"/runs/{big}?smooth=0.8",
        **{f"run-{tab}": f"/runs/{big}?tab={tab}" for tab in tabs},
        "failed-run": f"/runs/{world.runs['lr-grid-5'].id}",
        "sweeps": "/sweeps",
        "sweep": f"/sweeps/{world.sweep.id}",
        "law": "/law",
        "compare": f"/compare?runs={trials}",
        "cluster": "/cluster",
        "rollouts": "/rollouts",
        "rollout": f"/rollouts/{world.rollout.id}?open=cpu,one_gpu",
    }


def test_list_of_pages_has_every_route(world: World):
    addresses = [urlsplit(address).path for address in pages(world).values()]
    routes = [route for route in router.routes if isinstance(route, APIRoute)]
    assert routes
    forgotten = [
        route.path
        for route in routes
        if not any(route.path_regex.fullmatch(address) for address in addresses)
    ]
    assert forgotten == []


def test_an_address_without_a_page_has_links_to_those_that_there_are(look: Visit):
    answer = look.page.goto(f"{look.url}/runs/")
    assert answer.status == 404
    expect(look.page.get_by_role("heading", name="There is no page /runs/")).to_be_visible()
    look.page.locator("#main").get_by_role("link", name="Sweeps").click()
    expect(look.page).to_have_url(f"{look.url}/sweeps")
    look.watch.console = [line for line in look.watch.console if "404" not in line]


def settle(page: Page) -> None:
    """Wait until the page has its data and its figure, and its visible charts are drawn."""
    expect(page.locator("#totals")).to_contain_text("GPUs busy")
    expect(page.locator("div.figure:empty")).to_have_count(0)
    page.wait_for_function(
        """() => ![...document.querySelectorAll('.plot')].some((plot) => {
          const box = plot.getBoundingClientRect();
          return plot.checkVisibility() && box.bottom > 0 && box.top < innerHeight
            && !plot.querySelector('.chart-svg') && plot.textContent === '…';
        })"""
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "screen",
    [
        pytest.param({"width": 1400}, id="1400-light"),
        pytest.param({"width": 375, "dark": True}, id="375-dark", marks=pytest.mark.nightly),
        pytest.param({"width": 1400, "dark": True}, id="1400-dark", marks=pytest.mark.nightly),
        pytest.param({"width": 375}, id="375-light", marks=pytest.mark.nightly),
        pytest.param({"width": 1920, "height": 1080}, id="1920", marks=pytest.mark.nightly),
        # A browser at 200 % has half of the pixels, each as large as four.
        pytest.param(
            {"width": 700, "height": 450, "device_scale_factor": 2},
            id="zoom-200",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            {"width": 1400, "forced_colors": "active"},
            id="forced-colours",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_every_page_is_accessible_fits_and_logs_no_error(
    world: World, browser, screen: dict[str, Any]
):
    """``visiting`` also checks for console errors and requests to other hosts."""
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    with visiting(browser, world.lehr.url, **screen) as visit:
        for name, path in pages(world).items():
            page = visit.open(path)
            settle(page)
            wide = page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wide <= 0, f"{name} is {wide} px wider than the page"
            page.evaluate(axe)
            found = page.evaluate(
                """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
                    .filter((v) => ['serious', 'critical'].includes(v.impact) || v.id === 'heading-order')
                    .map((v) => [v.id, v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.failureSummary)])"""
            )
            assert found == [], name


def test_pages_have_a_strict_policy_and_no_inline_scripts(look: Visit, world: World):
    for path in pages(world).values():
        answer = look.page.request.get(look.url + path)
        policy = answer.headers["content-security-policy"]
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        html = answer.text()
        assert not re.search(r"<script(?![^>]*\bsrc=)", html), "no inline script"
        assert not re.search(r"<style|\sstyle=|\son\w+=", html)
        assert not re.search(r"(src|href)=\"(https?:)?//", html)


@pytest.mark.parametrize(
    "path",
    [
        "/static/x/../pages.py",
        "/static/x/js/../../pages.py",
        "/static/x/%2e%2e/pages.py",
        "/static/x/..%2fpages.py",
        "/static/x//etc/passwd",
        "/static/x/no.js",
    ],
)
def test_no_other_file_is_served(world: World, path: str):
    """Send the path unchanged: a browser would remove the dots."""
    connection = http.client.HTTPConnection(urlsplit(world.lehr.url).netloc, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status == 404
    assert b"import" not in body
    assert b"root:" not in body


def test_theme_follows_the_system_until_it_is_changed(world: World, browser):
    with visiting(browser, world.lehr.url, dark=True) as visit:
        root = visit.page.locator("html")
        expect(root).to_have_attribute("data-theme", "dark")
        visit.page.get_by_role("button", name="Theme").click()
        expect(root).to_have_attribute("data-theme", "light")
        visit.open("/sweeps")
        expect(root).to_have_attribute("data-theme", "light")


def test_report_with_an_archive_shows_the_report_alone(browser: Browser, tmp_path: Path):
    file = tmp_path / "spoilt.lehr.html"
    with file.open("wb") as out:
        writer = BundleWriter(out, RECORDED.read_bytes().partition(b"<plaintext")[0].decode())
        writer.add("</plaintext></body><h1>out</h1><script>alert(1)</script>-->", b"x")
        writer.close(id="x", name="x")
    context = browser.new_context()
    for path in (RECORDED, file):
        page, said = context.new_page(), list[str]()
        page.on("console", lambda message, said=said: said.append(message.text))
        page.on("pageerror", lambda error, said=said: said.append(str(error)))
        page.goto(path.as_uri())
        shown = page.locator("body").inner_text().strip()
        assert "lr-grid-small" in shown
        assert shown.endswith("This file needs no network.")
        assert said == []
    context.close()
