"""Runs are tagged, archived and deleted from their pages."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr.home import runs_dir
from lehr_testing import seeding

from .conftest import Lehr, Visit

# The routes are tested in tests/api.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def test_selected_runs_are_tagged_and_archived_together(visit: Visit, lehr: Lehr):
    for name in ("first", "second"):
        run = lehr.store.runs.create(seeding.run_spec(name, tags=[name]))
        attempt = seeding.start(lehr.store, run)
        attempt.end(RunState.COMPLETED, 1)
    page = visit.open("/")
    for name in ("first", "second"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.locator("#selection").get_by_role("button", name="Tag").click()
    page.get_by_role("textbox", name="tags").fill("both")
    page.get_by_role("dialog").get_by_role("button", name="Tag").click()
    expect(page.locator(".tag", has_text="both")).to_have_count(2)
    assert lehr.store.runs.find("first").tags == ["first", "both"]
    page.get_by_role("button", name="Archive").click()
    page.get_by_role("dialog").get_by_role("button", name="Archive").click()
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    visit.open("/?filter=archived:yes")
    expect(page.get_by_role("link", name="second")).to_be_visible()


def test_deletion_shows_first_what_it_frees(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("old"))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 11))
    attempt.checkpoint(10)
    attempt.end(RunState.COMPLETED, 10)
    folder = runs_dir(lehr.store.home) / run.id / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(5_000_000))
    page = visit.open(f"/runs/{run.id}")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Frees 5.0")
    expect(dialog).to_contain_text("1 checkpoint among them")
    dialog.get_by_role("button", name="Back").click()
    assert folder.exists()
    page.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete for good").click()
    expect(page.locator("#toasts")).to_contain_text("old is deleted: 5.0")
    assert not folder.exists()
    visit.open(f"/runs/{run.id}")
    expect(page.locator(".head-line")).to_contain_text("archived")
    # Requests of the page during the deletion; browsers log them.
    visit.watch.console = [line for line in visit.watch.console if "404" not in line]
