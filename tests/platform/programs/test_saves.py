"""What a program may save as one checkpoint. How saves are found: test_supervisor.py."""

from __future__ import annotations

import pytest

from lehr.programs import saves
from lehr.programs.saves import keep, saved_in
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


def test_longest_path_is_kept(base, tmp_path):
    (base / ("w" * 240)).write_bytes(b"weights")
    saved = saved_in(base, [base / ("w" * 240)])
    keep(base, saved, tmp_path / "step_1", step=1, tokens=0, reason="schedule")
    assert list(read_manifest(tmp_path / "step_1").files) == ["w" * 240]


def test_file_with_the_name_of_the_manifest_is_refused(base, tmp_path):
    (base / "manifest.json").write_text("{}")
    with pytest.raises(OSError, match="Lehr's own list of files has this name"):
        keep(base, saved_in(base, [base]), tmp_path / "step_1", step=1, tokens=0, reason="")
