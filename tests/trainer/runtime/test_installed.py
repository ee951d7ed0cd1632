"""Versions of what a Python can import, read without importing it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from lehr_trainer.runtime import installed


def test_every_distribution_has_its_version() -> None:
    found = installed.distributions()
    assert found["torch"] == metadata.version("torch")
    assert list(found) == sorted(found)


def test_copies_inside_setuptools_are_no_installed_distributions(tmp_path) -> None:
    """setuptools adds them to ``sys.path`` when it is imported, so they would come and go."""
    copy = tmp_path / "setuptools" / "_vendor" / "vendored_copy-1.0.dist-info"
    copy.mkdir(parents=True)
    (copy / "METADATA").write_text("Name: vendored-copy\nVersion: 1.0\n")
    done = subprocess.run(
        [sys.executable, "-P", str(Path(installed.__file__))],
        env={**os.environ, "PYTHONPATH": str(copy.parent)},
        capture_output=True,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert found["torch"] == metadata.version("torch")
    assert "vendored-copy" not in found


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
        [sys.executable, "-P", str(Path(installed.__file__))],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["cuda"] == cuda
