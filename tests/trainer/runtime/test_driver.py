"""The version of NVIDIA's driver, as its file in /proc has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr_trainer.runtime import installed

KINDS = {
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build": "570.86.15",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC": "535.104.05",
    "something else": "unknown",
}


@pytest.mark.parametrize("line", KINDS)
def test_version_is_that_of_the_kernel_module(
    line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "version").write_text(f"{line}\nGCC version: 12.3.0\n")
    monkeypatch.setattr(installed, "_FILE", tmp_path / "version")
    assert installed.driver_version() == KINDS[line]


def test_machine_without_a_driver_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(installed, "_FILE", tmp_path / "gone")
    assert installed.driver_version() == "none"
