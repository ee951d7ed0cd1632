"""Notes on the pages of a run, a sweep and a rollout; saved views of the runs page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr_testing import rollouts, seeding

from .conftest import Lehr, Visit

# The routes are tested in tests/api.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def test_note_is_written_shown_as_text_with_links_and_found_by_the_filter(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("noted"))
    lehr.store.runs.create(seeding.run_spec("other"))
    page = visit.open(f"/runs/{run.id}")
    page.get_by_role("button", name="Add a note").click()
    page.get_by_role("textbox", name="note").fill("<b>hot</b>, see https://example.org/x.")
    page.get_by_role("button", name="Save", exact=True).click()
    note = page.locator(".note-text")
    expect(note).to_have_text("<b>hot</b>, see https://example.org/x.")
    expect(note.get_by_role("link")).to_have_attribute("href", "https://example.org/x")
    assert lehr.store.runs.get(run.id).note.startswith("<b>hot")
    # Somebody else's change arrives by itself.
    lehr.store.runs.set_note(run.id, "cooled down")
    expect(note).to_have_text("cooled down")
    page = visit.open("/?filter=note:~cooled")
    expect(page.get_by_role("link", name="noted")).to_be_visible()
    expect(page.get_by_role("link", name="other")).to_have_count(0)


def test_sweep_and_rollout_have_a_note(visit: Visit, lehr: Lehr):
    sweep, _ = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", [1e-4, 1e-3]))
    rollout = rollouts.create(lehr.store, rollouts.spec(name="staged"))
    for path in (f"/sweeps/{sweep.id}", f"/rollouts/{rollout.id}"):
        page = visit.open(path)
        page.get_by_role("button", name="Add a note").click()
        page.get_by_role("textbox", name="note").fill("kept")
        page.get_by_role("button", name="Save", exact=True).click()
        expect(page.locator(".note-text")).to_have_text("kept")
    assert (
        lehr.store.sweeps.get(sweep.id).note == lehr.store.rollouts.get(rollout.id).note == "kept"
    )


def test_view_is_saved_opened_and_removed(visit: Visit, lehr: Lehr):
    lehr.store.runs.create(seeding.run_spec("one", tags=["mine"]))
    lehr.store.runs.create(seeding.run_spec("two"))
    page = visit.open("/?filter=tag:mine")
    page.locator(".saved-views summary").click()
    page.get_by_role("button", name="Save this view").click()
    page.get_by_label("name", exact=False).fill("all mine")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page = visit.open("/")
    expect(page.get_by_role("link", name="two")).to_be_visible()
    page.locator(".saved-views summary").click()
    page.get_by_role("link", name="all mine").click()
    expect(page).to_have_url(f"{lehr.url}/?filter=tag:mine")
    expect(page.get_by_role("link", name="two")).to_have_count(0)
    page.locator(".saved-views summary").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Save this view")).to_be_hidden()
    page.locator(".saved-views summary").click()
    page.get_by_role("button", name="Remove the view all mine").click()
    expect(page.locator(".saved-views")).to_contain_text("None yet")
    assert lehr.store.saved_views.all() == []
