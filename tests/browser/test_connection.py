"""Pages during and after an outage of the server."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import pytest
from playwright.sync_api import expect

from lehr_testing import api, seeding

from .conftest import log_in, new_context, serving

# javascript/feed has the reconnection.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def lasting_port() -> int:
    """A free port that stays free while nothing listens on it.

    From the range that the kernel gives to clients the browser, which keeps asking for the server,
    may be given this very port, and then the server cannot have it back.
    """
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def test_page_catches_up_after_the_server_restarted(
    tmp_path: Path, browser, monkeypatch: pytest.MonkeyPatch
):
    port = lasting_port()
    monkeypatch.setattr(api, "free_port", lambda: port)
    context = new_context(browser)
    page = context.new_page()
    with serving(tmp_path / "home") as lehr:
        run = lehr.store.runs.create(seeding.run_spec("live", steps=500))
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 11))
        log_in(page, lehr.url)
        page.get_by_role("link", name="live").click()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator(".status-line").first).to_contain_text("step 10")

    expect(page.locator("#connection")).to_have_text("no answer; trying again")
    expect(page.get_by_role("heading", name="live")).to_be_visible()

    with serving(tmp_path / "home") as lehr:
        attempt.store = lehr.store
        attempt.train(range(11, 21))
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator(".status-line").first).to_contain_text("step 20")
        page.wait_for_function(
            """() => document.querySelector('[data-metric="train/loss"] .plot')
                ?.figure?.traces.at(-1).x.at(-1) === 20"""
        )
        context.close()
