"""What a program may save as one checkpoint. How saves are found: test_supervisor.py."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import lehr_log
from lehr.node import attempt_code
from lehr.programs import saves
from lehr.programs.saves import keep, restore, saved_in
from lehr_trainer.contract.manifest import read_manifest


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


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


def test_longest_path_is_kept(base, tmp_path):
    (base / ("w" * 240)).write_bytes(b"weights")
    saved = saved_in(base, [base / ("w" * 240)])
    keep(base, saved, tmp_path / "step_1", step=1, tokens=0, reason="schedule")
    assert list(read_manifest(tmp_path / "step_1").files) == ["w" * 240]


def test_file_with_the_name_of_the_manifest_is_refused(base, tmp_path):
    (base / "manifest.json").write_text("{}")
    with pytest.raises(OSError, match="Lehr's own list of files has this name"):
        keep(base, saved_in(base, [base]), tmp_path / "step_1", step=1, tokens=0, reason="")


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


def test_folder_behind_a_link_belongs_to_the_checkpoint_once(base, tmp_path):
    """As in ``tokenizer -> ../tokenizers/gpt2``, and in ``latest -> step-2``."""
    (tmp_path / "shared/deep").mkdir(parents=True)
    (tmp_path / "shared/deep/vocab.json").write_text("v")
    (base / "ck/step-2").mkdir(parents=True)
    (base / "ck/step-2/w.pt").write_text("w")
    (base / "ck/a-loop").symlink_to(".")
    (base / "ck/best").symlink_to("step-2")
    (base / "ck/tokenizer").symlink_to(tmp_path / "shared")
    (tmp_path / "shared/up").symlink_to(base / "ck")
    (base / "ck/gone").symlink_to("nowhere")
    (base / "ck/circle").symlink_to("circle")
    saved = saved_in(base, [base / "ck"])
    assert set(saved.files) == {"ck/step-2/w.pt", "ck/tokenizer/deep/vocab.json"}
    assert set(saved.elsewhere) == {"ck/a-loop", "ck/best", "ck/tokenizer/up"}
    declared = lehr_log._state_of(str(base / "ck"))
    assert {f"ck/{name}" for name in declared} == set(saved.files)
    keep(base, saved, tmp_path / "step_1", step=1, tokens=0, reason="program")
    (tmp_path / "again").mkdir()
    restore(tmp_path / "step_1", tmp_path / "again")
    assert (tmp_path / "again/ck/tokenizer/deep/vocab.json").read_text() == "v"


def test_copy_that_shares_its_blocks_needs_no_room_and_has_the_digest(base, tmp_path, monkeypatch):
    """As on XFS and Btrfs; this machine may have neither."""

    def share(source, target) -> bool:
        target.write(source.read())
        target.flush()
        source.close()  # What the program does with its file from now on does not matter.
        return True

    (base / "a.pt").write_bytes(content := os.urandom(6000))
    monkeypatch.setattr(saves, "_share", share)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    keep(base, saved_in(base, [base]), tmp_path / "step_1", step=1, tokens=0, reason="program")
    assert (tmp_path / "step_1/a.pt").read_bytes() == content
    [entry] = read_manifest(tmp_path / "step_1").files.values()
    assert entry.sha256 == hashlib.sha256(content).hexdigest()
