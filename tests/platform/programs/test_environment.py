"""Versions of a program's environment, and which of them changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.programs.environment import changes, versions
from lehr_trainer.runtime import driver


def test_versions_have_python_and_every_distribution() -> None:
    assert {"python", "torch", "lehr"} <= versions().keys()


def test_versions_have_the_driver_of_the_cards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As /proc/driver/nvidia/version has it.
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    (tmp_path / "version").write_text(line)
    for path, expected in ((tmp_path / "version", "570.86.15"), (tmp_path / "gone", "none")):
        monkeypatch.setattr(driver, "_FILE", path)
        versions.cache_clear()
        assert versions()["driver"] == expected
    versions.cache_clear()


def test_changes_list_the_important_versions_first_and_count_the_rest() -> None:
    before = {"a": "1", "torch": "2.12", "python": "3.11", "gone": "1"}
    now = {"a": "2", "torch": "2.13", "python": "3.11", "new": "1"}
    assert changes(before, now) == ["torch 2.12 -> 2.13", "a 1 -> 2", "gone 1 -> none"]
    assert changes({}, now) == []
    many = {f"p{n:02}": "1" for n in range(13)}
    assert changes(many, {})[-2:] == ["p09 1 -> none", "3 more"]
