"""The code of a run, on its page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr.capsules.archive import SourceFile
from lehr.capsules.shelf import Shelf
from lehr_testing import seeding

from .conftest import Lehr, Visit

# The routes are tested in tests/api.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def test_config_tab_shows_the_capsule_and_its_commands(visit: Visit, lehr: Lehr, tmp_path) -> None:
    (tmp_path / "train.py").write_text("steps = 10\n")
    sources = [
        SourceFile(f"{folder}/{name}.py", str(tmp_path / "train.py"), 0o644)
        for folder, name in [("trainer", "a"), ("trainer", "b"), ("project", "train")]
    ]
    digest = Shelf(lehr.store.home).make(sources)
    spec = seeding.run_spec("pinned")
    code = spec.code.model_copy(update={"digest": digest})
    run = lehr.store.runs.create(spec.model_copy(update={"code": code}))
    old = lehr.store.runs.create(seeding.run_spec("old"))

    page = visit.open(f"/runs/{run.id}?tab=config")
    facts = page.locator(".run-code")
    expect(facts).to_contain_text(digest[:12])
    expect(facts).to_contain_text("3 files: 2 of the trainer, 1 of the project")
    expect(facts).to_contain_text("kB")
    expect(facts).to_contain_text(f"lehr code diff OTHER-RUN {run.id}")
    expect(facts).to_contain_text(f"lehr code checkout {run.id} DIR")

    visit.open(f"/runs/{old.id}?tab=config")
    expect(page.get_by_text("This run has no capsule")).to_be_visible()
