"""The code of a run, on its page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr_testing import seeding

from .code_runs import expect_patch, with_code
from .conftest import Lehr, Visit

# The routes are tested in tests/api.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def test_config_tab_shows_the_capsule_and_its_commands(visit: Visit, lehr: Lehr, tmp_path) -> None:
    run = with_code(lehr, tmp_path, "pinned", "steps = 10\n")
    old = lehr.store.runs.create(seeding.run_spec("old"))

    page = visit.open(f"/runs/{run.id}?tab=config")
    facts = page.locator(".run-code")
    expect(facts).to_contain_text(run.spec["code"]["digest"][:12])
    expect(facts).to_contain_text("3 files: 2 of the trainer, 1 of the project")
    expect(facts).to_contain_text("kB")
    expect(facts).to_contain_text(f"lehr code diff OTHER-RUN {run.id}")
    expect(facts).to_contain_text(f"lehr code checkout {run.id} DIR")

    visit.open(f"/runs/{old.id}?tab=config")
    expect(page.get_by_text("This run has no capsule")).to_be_visible()


def test_config_tab_of_a_fork_shows_what_changed_in_its_code(visit: Visit, lehr: Lehr, tmp_path):
    parent = with_code(lehr, tmp_path, "parent", "steps = 10\n")
    fork = with_code(lehr, tmp_path, "fork", "steps = 20\n", forked_from=parent.id)
    same = with_code(lehr, tmp_path, "same", "steps = 10\n", forked_from=parent.id)

    page = visit.open(f"/runs/{fork.id}?tab=config")
    summary = page.get_by_text(f"Differences from {parent.id}")
    expect(summary).to_be_visible()
    assert not any("/diff?" in path for path in visit.watch.requests), "fetched unasked"
    summary.click()
    expect_patch(page)

    visit.open(f"/runs/{same.id}?tab=config")
    page.get_by_text(f"Differences from {parent.id}").click()
    expect(page.get_by_text("The files are the same.")).to_be_visible()

    visit.open(f"/runs/{parent.id}?tab=config")
    expect(page.locator(".run-code")).to_contain_text("lehr code diff OTHER-RUN")
    expect(page.get_by_text("Differences from")).to_have_count(0)
