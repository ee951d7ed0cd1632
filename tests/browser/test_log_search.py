"""Search over a whole log: walk through matches far beyond the lines shown, download; ends; titles."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import Lehr, Visit

# The search is tested in tests/api.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def logged(lehr: Lehr, lines: int) -> tuple[str, str]:
    """A run whose log has a match at the first, the middle and the last line."""
    run = lehr.store.runs.create(seeding.run_spec("talks"))
    attempt = seeding.start(lehr.store, run)
    at = {1, lines // 2, lines}
    text = "".join(
        f"line {n} {'Needle' if n in at else 'hay'} {'é' * (n % 3)}\n" for n in range(1, lines + 1)
    )
    attempt.log(text)
    return run.id, text


def test_matches_of_the_whole_log_are_counted_and_walked(visit: Visit, lehr: Lehr):
    lines = 40_000
    run_id, text = logged(lehr, lines)
    page = visit.open(f"/runs/{run_id}?tab=logs")
    log = page.get_by_role("log")
    expect(log).to_contain_text(f"line {lines} Needle")
    expect(log).not_to_contain_text("line 20000 ")
    page.get_by_role("searchbox", name="Search in the log").fill("needle")
    expect(page.get_by_role("status").filter(has_text="whole log")).to_have_text(
        "3 in the whole log"
    )
    now = page.locator(".hit-now")
    for button, found in (
        ("Next match", "line 1 Needle"),
        ("Next match", f"line {lines // 2} Needle"),
        ("Next match", f"line {lines} Needle"),
        ("Next match", "line 1 Needle"),
        ("Previous match", f"line {lines} Needle"),
        ("Previous match", f"line {lines // 2} Needle"),
    ):
        page.get_by_role("button", name=button).click()
        expect(now).to_contain_text(found)
        expect(now).to_be_in_viewport()
    expect(log).to_contain_text(f"line {lines // 2 - 1} hay")
    expect(page.get_by_text("2 of 3")).to_be_visible()
    # The end of the log stays one click away, and live lines do not disturb the reading.
    page.get_by_role("button", name="Latest lines").click()
    expect(log).to_contain_text(f"line {lines} Needle")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    saved = download.value.path().read_text()
    assert saved.endswith(text)
    assert download.value.suggested_filename == f"{run_id}-1-rank-0.log"


def test_text_without_a_match_is_said_so(visit: Visit, lehr: Lehr):
    run_id, _ = logged(lehr, 10)
    page = visit.open(f"/runs/{run_id}?tab=logs&find=nowhere")
    expect(page.get_by_text("no match in the whole log")).to_be_visible()


def test_killed_attempt_shows_its_signal_and_a_lost_one_its_cause(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("killed"))
    first = seeding.start(lehr.store, run)
    lehr.store.attempts.update(first.id, exited_at=first.at, exit={"code": None, "signal": 9})
    page = visit.open(f"/runs/{run.id}?tab=system")
    attempts = page.get_by_role("table", name="Attempts")
    expect(attempts).to_contain_text("killed (SIGKILL)")
    lehr.store.attempts.update(first.id, exit={"code": None, "reason": "node_lost"})
    page.reload()
    expect(attempts).to_contain_text("node lost")


def test_title_and_icon_of_the_tab_tell_the_state(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("titled", steps=200))
    page = visit.open(f"/runs/{run.id}")
    expect(page).to_have_title("… titled · Lehr")
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 51))
    expect(page).to_have_title("▶ 25 % titled · Lehr")
    icon = page.locator("link[rel=icon]")
    assert "icon-running.svg" in (icon.get_attribute("href") or "")
    attempt.end(RunState.FAILED, 50, cause="nan_loss", message="loss became NaN")
    expect(page).to_have_title("✕ titled · Lehr")
    href = icon.evaluate("link => link.href")
    assert href.endswith("icon-failed.svg")
    assert page.request.get(href).ok
