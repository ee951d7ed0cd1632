"""What a program may save as one checkpoint. How saves are found: test_supervisor.py."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lehr.node import attempt_code
from lehr.node.programs import saves
from lehr.node.programs.saves import keep, restore, saved_in
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


def test_holes_of_a_file_stay_holes_in_its_copy_and_in_what_is_restored(base, tmp_path):
    content = os.urandom(5000)
    with (base / "sparse.pt").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(40 << 20)
        file.write(content)
    whole = hashlib.sha256((base / "sparse.pt").read_bytes()).hexdigest()
    target = tmp_path / "step_1"
    keep(base, saved_in(base, [base]), target, step=1, tokens=0, reason="program")
    assert read_manifest(target).files["sparse.pt"].sha256 == whole
    (tmp_path / "again").mkdir()
    restore(target, tmp_path / "again")
    for copy in (target / "sparse.pt", tmp_path / "again/sparse.pt"):
        assert copy.stat().st_size == 64 << 20
        assert copy.stat().st_blocks * 512 < 1 << 20
        assert hashlib.sha256(copy.read_bytes()).hexdigest() == whole


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
