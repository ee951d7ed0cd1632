"""What nodes did over time: on the run's System tab and on the cluster's page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from lehr.system_history.history import SystemHistoryFiles
from lehr_testing import seeding
from lehr_testing.api import served

from .conftest import Lehr, Visit, visiting

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# platform/system_history and tests/api have the measurements.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def test_run_shows_its_own_gpu_and_the_cluster_each_node(visit: Visit, lehr: Lehr) -> None:
    history, now = SystemHistoryFiles(lehr.store.home), time.time()
    for back in range(600, 0, -10):
        gpus = [{"index": index, "utilization": 0.9, "power_watts": 512.0} for index in (0, 1)]
        host = {"cpu": 0.25, "ram_used_bytes": 16e9, "ram_bytes": 64e9}
        news = {"news": "node", "name": "n1", "host_now": host, "gpus_now": gpus}
        history.record(news, at=now - back)
    run = lehr.store.runs.create(seeding.run_spec("measured"))
    attempt = seeding.start(lehr.store, run, gpus=[1])
    lehr.store.attempts.update(attempt.id, dispatched_at=now - 300)
    page = visit.open(f"/runs/{run.id}?tab=system")
    shown = page.locator(".courses")
    expect(shown).to_contain_text("GPU 1 power")
    expect(shown).to_contain_text("512 W")
    expect(shown).not_to_contain_text("GPU 0")
    cpu = page.get_by_role("img", name="CPU: last 25")
    cpu.hover()
    expect(shown.locator("figure").filter(has=cpu)).to_contain_text(" at ")

    page = visit.open("/cluster")
    page.get_by_text("n1 over time").click()
    expect(page.locator(".courses")).to_contain_text("GPU 0 power")
    page.get_by_role("combobox", name="Span of n1").select_option("last 90 days")
    expect(page.locator(".courses")).to_contain_text("memory")


def test_node_is_drained_with_a_reason_and_readmitted(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "home") as (api, url), visiting(browser, url) as visit:
        page = visit.open("/cluster")
        page.get_by_role("button", name="Drain n1").click()
        page.get_by_role("textbox", name="reason").fill("its fans are replaced")
        page.get_by_role("button", name="Drain the node").click()
        page.get_by_role("button", name="Readmit n1").click()
        page.get_by_role("button", name="Drain n1").wait_for()
        assert api.dispatcher.excluded == {}
