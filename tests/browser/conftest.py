"""Chromium, and a server with a real store but without a dispatcher: tests change the runs."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from lehr.control.lifecycle import RunState
from lehr.schemas.cluster import ClusterView, GpuView, NodeView, QueueEntry
from lehr.store import Store
from lehr.store.tables import RolloutRow, RunRow, SweepRow
from lehr_testing import seeding
from lehr_testing.api import TOKEN, served
from lehr_testing.seeded_rollouts import Seeded

if TYPE_CHECKING:
    from playwright.sync_api import (
        Browser,
        BrowserContext,
        ConsoleMessage,
        Page,
        Playwright,
        Request,
    )


BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""In the order in which they are tried; the Makefile installs the first that the system has."""


def chromium() -> str:
    """Return the path of Chromium: ``LEHR_TEST_CHROMIUM``, or the first that is installed.

    The headless shell renders pages like Chromium, without the windows around them.
    """
    chosen = os.environ.get("LEHR_TEST_CHROMIUM")
    found = chosen or next((path for one in BROWSERS if (path := shutil.which(one))), None)
    return found or "/usr/bin/chromium"


FOLDER = Path(__file__).parent
CHROMIUM = chromium()
GPUS = 8

expect.set_options(timeout=45_000)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests in two workers: each starts one browser and one ``world``.

    But for those that stay with the tests of another fixture.
    """
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.get_closest_marker("xdist_group") is None:
            half = "r to z" if item.path.name >= "test_r" else "a to q"
            item.add_marker(pytest.mark.xdist_group(f"browser {half}"))


def cluster_of(store: Store) -> ClusterView:
    """Eight GPUs, held by the attempts that are open."""
    gpus = [
        GpuView(index=i, name="NVIDIA A100-SXM4-80GB", memory_bytes=80_000_000_000)
        for i in range(GPUS)
    ]
    for attempt in store.attempts.list_open():
        run = store.runs.get(attempt.run_id)
        for index in (gpu for part in attempt.placement for gpu in part["gpus"]):
            gpus[index].run_id = run.id
            gpus[index].run_name = run.name
            gpus[index].attempt = attempt.number
            gpus[index].since = attempt.created_at
            gpus[index].utilization = 0.97
            gpus[index].memory_used_bytes = 61_316_530_176
            gpus[index].temperature_celsius = 64
    node = NodeView(name="n1", address="10.0.0.11", alive=True, logical=False, gpus=gpus, cpus=64)
    busy = sum(gpu.run_id is not None for gpu in gpus)
    return ClusterView(state="up", nodes=[node], gpus_total=GPUS, gpus_busy=busy)


def queue_of(store: Store) -> list[QueueEntry]:
    waiting = store.runs.page(states=["queued"], limit=100).items
    return [
        QueueEntry(
            position=i,
            run_id=run.id,
            name=run.name,
            gpus=run.spec["resources"]["gpus"],
            nodes=1,
            gpu_type=run.spec["resources"]["gpu_type"],
            priority=run.priority,
            reason=run.pending_reason or "next in line",
            queued_at=run.queued_at,
            expected_start=run.queued_at + 3600,
            expected_because="big-run ends: 600 steps left at 2.1 s",
        )
        for i, run in enumerate(reversed(waiting), start=1)
    ]


@dataclass
class Lehr:
    """The server under test, and its store."""

    url: str
    store: Store


@contextlib.contextmanager
def serving(home: Path) -> Iterator[Lehr]:
    with served(home) as (api, url):
        store = api.store
        api.dispatcher.cluster = lambda: cluster_of(store)
        api.dispatcher.queue = lambda: queue_of(store)
        yield Lehr(url, store)


@pytest.fixture
def lehr(tmp_path: Path) -> Iterator[Lehr]:
    with serving(tmp_path / "home") as lehr:
        yield lehr


@dataclass
class World:
    """A server with some history, for tests that only read."""

    lehr: Lehr
    runs: dict[str, RunRow]
    sweep: SweepRow
    rollout: RolloutRow


RATES = [1e-4, 3e-4, 1e-3, 2e-3, 1e-2]


def fill(store: Store) -> tuple[dict[str, RunRow], SweepRow]:
    """A sweep that ended (its last trial diverged), a run that resumed, one that waits."""
    sweep, trials = seeding.create_sweep(store, seeding.lr_sweep("lr-grid", RATES, steps=200))
    for i, run in enumerate(trials):
        attempt = seeding.start(store, run, gpus=[i])
        if i == len(trials) - 1:
            attempt.train(range(1, 60))
            attempt.warn("nan_loss", "loss became NaN at step 39", 39)
            attempt.end(RunState.FAILED, 59, cause="nan_loss", message="loss became NaN at step 39")
        else:
            attempt.train(range(1, 201))
            attempt.checkpoint(200, val_loss=4.0, reason="last")
            attempt.end(RunState.COMPLETED, 200)
    big = store.runs.create(seeding.run_spec("big-run", gpus=8, steps=1000, tags=["omk"]))
    first = seeding.start(store, big, gpus=range(8))
    first.train(range(1, 301))
    first.checkpoint(200, val_loss=4.4)
    first.sample(200, "The meaning of life is to look at curves")
    first.lose("node n1 was lost; it resumes from step 200")
    second = seeding.start(store, store.runs.get(big.id), gpus=range(8), resume=200)
    second.train(range(201, 401))
    second.warn("loss_too_good", "the loss is too good to be true", 350)
    waits = store.runs.create(seeding.run_spec("probe-fp8", tags=["fp8"]))
    store.runs.set_pending_reasons({waits.id: "waits for 1 x H100; this cluster has 8 x A100"})
    named = {run.name: store.runs.get(run.id) for run in (*trials, big, waits)}
    return named, sweep


@pytest.fixture(scope="package")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serving(tmp_path_factory.mktemp("world") / "home") as lehr:
        runs, sweep = fill(lehr.store)
        rollout = Seeded(lehr.store, "llama-1b")
        rollout.passed("cpu")
        rollout.stopped("one_gpu")
        yield World(lehr, runs, sweep, rollout.rollout)


@pytest.fixture(scope="package")
def playwright() -> Iterator[Playwright]:
    """Ends with this folder: while it lives, its event loop runs in the main thread.

    An ``async`` test elsewhere could not start a loop of its own.
    """
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="package")
def browser(playwright: Playwright) -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM}; LEHR_TEST_CHROMIUM names another")
    browser = playwright.chromium.launch(
        executable_path=CHROMIUM,
        args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
    )
    try:
        yield browser
    finally:
        browser.close()


@dataclass
class Watch:
    """Forbidden actions of pages: console errors and foreign requests."""

    origin: str
    console: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Requested paths, in order."""

    def follow(self, page: Page) -> None:
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.console.append(f"uncaught: {error}"))
        page.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.console.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if request.url.startswith(f"{self.origin}/"):
            self.requests.append(request.url.removeprefix(self.origin))
        elif not request.url.startswith(("data:", "blob:")):
            self.elsewhere.append(request.url)

    def assert_clean(self) -> None:
        assert self.console == []
        assert self.elsewhere == []


def new_context(
    browser: Browser, *, width: int = 1400, height: int = 900, dark: bool = False, **more: Any
) -> BrowserContext:
    context = browser.new_context(
        **more,
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        locale="en-GB",
        timezone_id="Europe/Berlin",
    )
    context.set_default_timeout(60_000)
    return context


def viewer_token(url: str) -> str:
    """Make a token of somebody who may only look."""
    answer = httpx.post(
        f"{url}/api/v1/tokens",
        json={"name": "guest", "role": "viewer"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    return str(answer.json()["token"])


def get_cookie(page: Page, url: str, token: str = TOKEN) -> None:
    """Give the page's context the cookie of a login; ``test_login`` fills in the form."""
    answer = page.request.post(f"{url}/login", form={"token": token}, max_redirects=0)
    assert answer.status == 303, answer.text()


def log_in(page: Page, url: str, token: str = TOKEN) -> None:
    """Open the list of runs with a login."""
    get_cookie(page, url, token)
    page.goto(f"{url}/")


@dataclass
class Visit:
    tab: Page
    """Empty until ``open`` or ``page`` is used."""
    watch: Watch
    url: str

    @property
    def page(self) -> Page:
        """The page; with the list of runs in it where nothing else was opened."""
        if self.tab.url == "about:blank":
            self.open("/")
        return self.tab

    def open(self, path: str) -> Page:
        self.tab.goto(f"{self.url}{path}")
        return self.tab


@contextlib.contextmanager
def visiting(browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
    """Yield a logged-in page; fail at the end if it logged an error or requested another host.

    ``options`` are those of ``new_context``.
    """
    context = new_context(browser, **options)
    try:
        page = context.new_page()
        watch = Watch(url)
        watch.follow(page)
        get_cookie(page, url)
        yield Visit(page, watch, url)
        watch.assert_clean()
    finally:
        context.close()


@pytest.fixture
def visit(lehr: Lehr, browser: Browser) -> Iterator[Visit]:
    with visiting(browser, lehr.url) as visit:
        yield visit


@pytest.fixture
def look(world: World, browser: Browser) -> Iterator[Visit]:
    """A logged-in page on the session's world."""
    with visiting(browser, world.lehr.url) as visit:
        yield visit
