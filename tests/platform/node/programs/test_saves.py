"""What a program may save as one checkpoint. How saves are found: test_supervisor.py."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lehr.node import attempt_code
from lehr.node.programs import saves
from lehr.node.programs.saves import changes, keep, saved_in, versions
from lehr_trainer.contract.manifest import read_manifest


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["w" * 241, "w" * 200 + "/" + "x" * 40, "ä" * 41])
def test_path_that_gives_no_file_name_is_refused_by_its_name(base, tmp_path, name):
    """A path becomes one file name: ``/`` takes three bytes, ``ä`` six."""
    file = base / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"weights")
    saved = saved_in(base, [file])
    with pytest.raises(OSError, match="the path of a file is too long") as refused:
        keep(base, saved, tmp_path / "step_1", step=1, tokens=0, reason="schedule")
    assert refused.value.filename == name
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize("failing", [{2}, {2, 3}])
def test_checkpoint_is_there_until_its_replacement_is(base, tmp_path, monkeypatch, failing):
    """``{2, 3}``: as after a kill, which puts nothing back; then the node does."""
    target, plain, calls = tmp_path / "checkpoints/step-00000000", Path.rename, []

    def rename(path: Path, other: Path) -> Path:
        calls.append(path)
        if len(calls) in failing:
            raise OSError(errno.EIO, "cannot be renamed")
        return plain(path, other)

    (base / "a.pt").write_text("old")
    keep(base, saved_in(base, [base]), target, step=0, tokens=0, reason="declared")
    (base / "a.pt").write_text("newer")
    saved = saved_in(base, [base])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(OSError, match="cannot be renamed"):
            keep(base, saved, target, step=0, tokens=0, reason="declared")
    assert target.exists() == (3 not in failing)
    attempt_code.tidy({"attempt_dir": str(tmp_path), "gang": {"nodes": 1}})
    assert (target / "a.pt").read_text() == "old"
    keep(base, saved_in(base, [base]), target, step=0, tokens=0, reason="declared")
    assert (target / "a.pt").read_text() == "newer"
    assert list(target.parent.iterdir()) == [target]


def test_checkpoint_without_room_is_refused_before_anything_is_written(base, tmp_path, monkeypatch):
    (base / "a.pt").write_bytes(os.urandom(6000))
    (base / "b.pt").write_bytes(os.urandom(6000))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9000))
    target = tmp_path / "step_1"
    with pytest.raises(OSError, match=r"it takes 0\.00 GB, and 0\.00 GB are free"):
        keep(base, saved_in(base, [base]), target, step=1, tokens=0, reason="program")
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_more_files_than_a_checkpoint_may_have_are_refused(base, tmp_path, monkeypatch):
    monkeypatch.setattr(saves, "MOST_FILES", 3)
    for number in range(4):
        (base / f"{number}.pt").write_bytes(b"weights")
    target = tmp_path / "step_1"
    with pytest.raises(OSError, match="it has 4 files; the limit is 3"):
        keep(base, saved_in(base, [base]), target, step=1, tokens=0, reason="schedule")
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    (base / "0.pt").unlink()
    keep(base, saved_in(base, [base]), target, step=1, tokens=0, reason="schedule")
    assert len(read_manifest(target).files) == 3


def test_versions_have_python_and_every_distribution() -> None:
    assert {"python", "torch", "lehr", "driver"} <= versions().keys()


def test_version_of_cuda_is_that_of_torch() -> None:
    import torch

    assert versions()["cuda"] == (torch.version.cuda or "none")


def test_changes_list_the_important_versions_first_and_count_the_rest() -> None:
    before = {"a": "1", "torch": "2.12", "cuda": "12.6", "python": "3.11", "gone": "1"}
    now = {"a": "2", "torch": "2.13", "cuda": "12.8", "python": "3.11", "new": "1"}
    first = ["cuda 12.6 -> 12.8", "torch 2.12 -> 2.13"]
    assert changes(before, now) == [*first, "a 1 -> 2", "gone 1 -> none"]
    assert changes({}, now) == []
    many = {f"p{n:02}": "1" for n in range(13)}
    assert changes(many, {})[-2:] == ["p09 1 -> none", "3 more"]
