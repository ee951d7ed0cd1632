"""Versions of a program's environment, and which of them changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.programs import environment
from lehr.programs.environment import changes, versions


def test_versions_have_python_and_every_distribution() -> None:
    assert {"python", "torch", "lehr", "driver"} <= versions().keys()


def test_version_of_cuda_is_that_of_torch() -> None:
    import torch

    assert versions()["cuda"] == (torch.version.cuda or "none")


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("cuda: Optional[str] = '12.8'\nhip = None\n", "12.8"),
        ('__version__ = "2.13"\ncuda = "13.0"\n', "13.0"),
        ("cuda: Optional[str] = None\n", "none"),
        ("", "none"),
        (None, "none"),
    ],
)
def test_version_of_cuda_is_read_without_importing_torch(tmp_path, text, cuda) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("raise SystemExit('imported')")
    if text is not None:
        (tmp_path / "torch/version.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-P", str(Path(environment.__file__))],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["cuda"] == cuda


def test_changes_list_the_important_versions_first_and_count_the_rest() -> None:
    before = {"a": "1", "torch": "2.12", "cuda": "12.6", "python": "3.11", "gone": "1"}
    now = {"a": "2", "torch": "2.13", "cuda": "12.8", "python": "3.11", "new": "1"}
    first = ["cuda 12.6 -> 12.8", "torch 2.12 -> 2.13"]
    assert changes(before, now) == [*first, "a 1 -> 2", "gone 1 -> none"]
    assert changes({}, now) == []
    many = {f"p{n:02}": "1" for n in range(13)}
    assert changes(many, {})[-2:] == ["p09 1 -> none", "3 more"]
