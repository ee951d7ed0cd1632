"""Files that a program logs into: read while they grow, each row once, with its time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.node.programs.saves import Declared
from lehr.node.programs.sources import FileSource, csv_source, tensorboard_source
from lehr_testing.tfevents import scalar, write


def read(source: FileSource) -> list[tuple[int, dict[str, float]]]:
    return [(row.step, row.values) for row in source.rows(now=True)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The file of Lightning's CSVLogger."""
    folder = tmp_path / "work/lightning_logs/version_0"
    folder.mkdir(parents=True)
    return folder / "metrics.csv"


@pytest.fixture
def source(log: Path, tmp_path: Path) -> FileSource:
    return csv_source(tmp_path / "work")


def test_rows_of_a_growing_csv_are_read_once_and_never_torn(source, log):
    log.write_text("")
    assert read(source) == []
    log.write_text("epoch,step")
    assert read(source) == []
    log.write_text("epoch,step,loss\n0,1,2.5\n0,2,1.2")
    assert read(source) == [(1, {"epoch": 0.0, "loss": 2.5})]
    log.write_text("epoch,step,loss\n0,1,2.5\n0,2,1.25\n")
    assert read(source) == [(2, {"epoch": 0.0, "loss": 1.25})]
    assert read(source) == []
    assert source.problem is None


def test_rows_without_times_are_spread_over_the_time_in_which_the_file_grew(source, log):
    log.write_text("step,loss\n1,1\n")
    os.utime(log, (100, 100))
    assert [row.at for row in source.rows(now=True)] == [100]
    with log.open("a") as file:
        file.write("2,1\n3,1\n4,1\n5,1\n")
    os.utime(log, (108, 108))
    assert [row.at for row in source.rows(now=True)] == [102, 104, 106, 108]


def test_events_of_tensorboard_have_their_own_times(tmp_path):
    source = tensorboard_source(tmp_path)
    write(tmp_path / "events.out.tfevents.1.host", [scalar(3, loss=0.5)])
    assert [(row.step, row.at) for row in source.rows(now=True)] == [(3, 1.5)]


def test_files_of_the_project_and_of_a_checkpoint_are_not_what_the_program_logs(tmp_path):
    work = tmp_path / "work"
    (work / "restored").mkdir(parents=True)
    (work / "restored/metrics.csv").write_text("step,loss\n1,9\n")
    (tmp_path / "metrics.csv").write_text("step,loss\n1,8\n")
    (work / "metrics.csv").symlink_to(tmp_path / "metrics.csv")
    (work / "broken").mkdir()
    (work / "broken/metrics.csv").symlink_to(tmp_path / "gone")
    source = csv_source(work)
    (work / "pipe").mkdir()
    os.mkfifo(work / "pipe/metrics.csv")
    (work / "own").mkdir()
    (work / "own/metrics.csv").write_text("step,loss\n1,7\n")
    assert read(source) == [(1, {"loss": 7.0})]
    assert source.problem is None


def test_only_the_newest_of_the_declared_files_is_saved(tmp_path):
    for name, at in (("last.ckpt", 10), ("last-v1.ckpt", 20)):
        (tmp_path / name).write_text(name)
        os.utime(tmp_path / name, (at, at))
    newest = Declared(tmp_path, ["*.ckpt"], newest=True)
    assert list(newest.saved().files) == ["last-v1.ckpt"]
    assert len(Declared(tmp_path, ["*.ckpt"]).saved().files) == 2
    folder = tmp_path / "checkpoint-2.ckpt"
    folder.mkdir()
    assert list(newest.saved().files) == ["last-v1.ckpt"], "an empty folder is nothing saved"
    for name in ("a", "b"):
        (folder / name).write_text("x")
    assert sorted(newest.saved().files) == ["checkpoint-2.ckpt/a", "checkpoint-2.ckpt/b"]
    assert newest.settled(ended=True) == newest.saved()
