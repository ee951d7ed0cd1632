"""Runs with code of their own, and what a page shows where it differs."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from lehr.capsules.archive import SourceFile
from lehr.capsules.capsule_store import CapsuleStore
from lehr.store.tables import RunRow
from lehr_testing import seeding

from .conftest import Lehr


def with_code(lehr: Lehr, folder: Path, name: str, text: str, **row: str) -> RunRow:
    """Create a run with two files of the trainer, and one of the project that has this text."""
    folder.mkdir(exist_ok=True)
    (folder / "trainer.py").write_text("x = 1\n")
    (folder / "train.py").write_text(text)
    sources = [
        SourceFile(place, str(folder / file), 0o644)
        for place, file in [
            ("trainer/a.py", "trainer.py"),
            ("trainer/b.py", "trainer.py"),
            ("project/train.py", "train.py"),
        ]
    ]
    digest = CapsuleStore(lehr.store.home).make(sources)
    spec = seeding.run_spec(name, steps=10)
    code = spec.code.model_copy(update={"digest": digest})
    return lehr.store.runs.create(spec.model_copy(update={"code": code}), **row)


def expect_patch(page: Page) -> None:
    """Open the file that differs: its steps went from 10 to 20."""
    page.get_by_text("project/train.py", exact=True).click()
    patch = page.locator(".patch:visible")
    expect(patch.locator(".patch-removed")).to_have_text("-steps = 10\n")
    expect(patch.locator(".patch-added")).to_have_text("+steps = 20\n")
