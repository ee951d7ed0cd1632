"""What pages load: bytes on the wire, counted between the browser and the server."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import Lehr, log_in, new_context

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
MOST = 400_000
TRIALS = 20


@dataclass
class Counted:
    url: str
    received: int = 0
    """Bytes that the browser got, with all headers."""


@contextlib.contextmanager
def counting(url: str) -> Iterator[Counted]:
    """Pass connections on to a server, and count what comes back."""
    server = (urlsplit(url).hostname, urlsplit(url).port)
    listener = socket.create_server(("127.0.0.1", 0))
    found = Counted(f"http://127.0.0.1:{listener.getsockname()[1]}")
    guard = threading.Lock()

    def pump(source: socket.socket, to: socket.socket, *, counts: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if counts:
                    with guard:
                        found.received += len(data)
                to.sendall(data)
        for one in (source, to):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                browser, _ = listener.accept()
                onward = socket.create_connection(server)
                for ends, counts in (((browser, onward), False), ((onward, browser), True)):
                    threading.Thread(
                        target=pump, args=ends, kwargs={"counts": counts}, daemon=True
                    ).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield found
    finally:
        listener.close()


def settled(page: Page, wire: Counted) -> int:
    """Return how much has come, once nothing more comes. The stream of events stays open."""
    before = -1
    while wire.received != before:
        before = wire.received
        page.wait_for_timeout(1000)
    return before


@pytest.mark.parametrize(
    "width",
    # The wide page loads what the other does, and the charts: at night.
    [1400, pytest.param(1920, marks=pytest.mark.nightly)],
)
def test_first_load_of_the_runs_page_is_small(lehr: Lehr, browser: Browser, width: int):
    """60 runs, of which the wide page draws the curves of the first 20."""
    for name in ("first", "second", "third"):
        rates = [1e-4 * (n + 1) for n in range(TRIALS)]
        _, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep(name, rates, steps=100))
        for run in runs:
            attempt = seeding.start(lehr.store, run)
            attempt.train(range(1, 101), logs=False)
            attempt.end(RunState.COMPLETED, 100)
    with counting(lehr.url) as wire:
        first = new_context(browser, width=width)
        log_in(first.new_page(), wire.url)
        cookies = first.cookies()
        first.close()
        # A new browser: nothing is cached.
        context = new_context(browser, width=width)
        context.add_cookies(cookies)
        page = context.new_page()
        wire.received = 0
        page.goto(f"{wire.url}/?flat=1")
        expect(page.locator("#totals")).to_contain_text("GPUs busy")
        expect(page.locator("#runs-foot")).to_contain_text("60 runs")
        if width == 1920:
            page.wait_for_function(
                """(most) => document.querySelectorAll('[data-metric="val/loss"] .trace.line').length >= most""",
                arg=TRIALS,
            )

        received = settled(page, wire)
        context.close()
    assert 50_000 < received <= MOST, f"{received:,} bytes"
