"""The comparison page: differences of the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from lehr_testing import seeding

from .code_runs import expect_patch, with_code
from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser


def compared(lehr: Lehr, folder: Path, name: str, text: str) -> str:
    """Create a run that has trained with such a train.py; return its id."""
    run = with_code(lehr, folder, name, text)
    seeding.start(lehr.store, run).train(range(1, 11))
    return run.id


def test_files_that_differ_from_the_baselines_are_shown_with_their_diff(
    visit: Visit, lehr: Lehr, tmp_path: Path
):
    first = compared(lehr, tmp_path / "1", "first", "steps = 10\n")
    same = compared(lehr, tmp_path / "2", "same", "steps = 10\n")
    other = compared(lehr, tmp_path / "3", "other", "steps = 20\n")
    page = visit.open(f"/compare?runs={first},{same},{other}&metric=train/loss")
    summary = page.get_by_text("other against first")
    expect(page.locator(".code-diff")).to_have_count(1)
    expect(page.get_by_text("project/train.py", exact=True)).to_be_hidden()
    assert not any("/diff?" in path for path in visit.watch.requests), "fetched unasked"
    summary.click()
    expect_patch(page)

    page.goto(f"{visit.url}/compare?runs={first},{same}&metric=train/loss")
    expect(page.get_by_text("They have the same code.")).to_be_visible()
