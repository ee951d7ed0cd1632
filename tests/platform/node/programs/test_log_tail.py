"""Odd lines in the log of a program: each is recorded or left out, and none ends the supervisor."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lehr.node.programs.keeper import Keeper
from lehr.node.programs.log_tail import FileSource, LogTail, sources
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import Recorder
from lehr.node.programs.saves import Declared
from lehr.specs.program import Program
from lehr_testing.tfevents import scalar, write
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import record_adapter
from lehr_trainer.runtime.event_stream import EventStream


class Attempt:
    """An attempt whose log the test writes."""

    def __init__(self, folder: Path) -> None:
        self.place = ProgramDir(folder / "run" / "attempt-1", None)
        self.place.folder.mkdir(parents=True)
        (self.place.folder / "state.txt").write_text("1")
        (self.place.attempt_dir.parent / "secret").write_text("2")
        self._events = EventStream(self.place.attempt_dir / layout.EVENTS)
        program = Program(script="train.py", steps=10)
        self.recorder = Recorder(self._events, tokens_per_step=1)
        keeper = Keeper(self.place, program, self._events, self.recorder)
        self.tail = LogTail(self.place, self.recorder, keeper)

    def write(self, **record: object) -> None:
        with self.place.log_file(0).open("ab") as file:
            file.write(json.dumps(record).encode() + b"\n")

    def records(self) -> list[dict]:
        lines = (self.place.attempt_dir / layout.EVENTS).read_bytes().splitlines()
        return [record_adapter.validate_json(line).model_dump() for line in lines]

    def warnings(self) -> list[str]:
        return [one["code"] for one in self.records() if one["kind"] == "warning"]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_numbers_that_no_float_holds_are_left_out(attempt):
    attempt.write(kind="metrics", step=1, values={"a": 10**400, "b": 2})
    attempt.write(kind="metrics", step=2, time=10**400, values={"b": 3})
    for odd in (10**400, -5, 2**70):
        attempt.write(kind="metrics", step=odd, values={"b": 4})
    attempt.tail.read()
    found = [one["values"]["b"] for one in attempt.records() if one["kind"] == "metrics"]
    assert found == [2, 3]
    assert "a" not in attempt.records()[0]["values"]
    assert attempt.warnings() == ["bad_step"]


@pytest.mark.parametrize(("digest", "recorded"), [("a" * 64, ["a" * 64]), ("a", []), (None, [])])
def test_digest_of_the_held_out_set_is_recorded(attempt, digest, recorded):
    attempt.write(kind="validation_data", step=0, digest=digest)
    attempt.write(kind="validation_data", step=0, tasks={"own": digest})
    attempt.tail.read()
    records = [one for one in attempt.records() if one["kind"] == "evaluation"]
    assert [one["validation_digest"] for one in records[:1]] == recorded
    assert [one["tasks"] for one in records[1:]] == [{"own": one} for one in recorded]
    assert attempt.warnings() == ([] if recorded else ["bad_line"])


def test_media_are_recorded_with_texts_of_a_limited_length_and_without_secrets(attempt):
    attempt.recorder._secrets = ["hush"]
    place = {"type": "image", "offset": 0, "size": 5}
    attempt.write(kind="media", step=3, name="x", caption="hush!", **place)
    for odd in ({"name": ""}, {"name": "x" * 201}, {"type": "html"}, {"size": -1}):
        attempt.write(kind="media", step=3, **{"name": "x", **place, **odd})
    for number in range(30):
        attempt.write(kind="warning", step=3, message=f"hush {number}" + "x" * 5_000)
    attempt.tail.read()
    first, odd, *warnings = attempt.records()
    expected = {"kind": "media", "name": "x", "caption": "***!", "step": 3}
    assert expected.items() <= first.items()
    assert (odd["code"], len(warnings)) == ("bad_line", 20)
    assert warnings[0]["code"] == "media"
    assert warnings[0]["message"].startswith("*** 0x")
    assert {len(one["message"]) for one in warnings} == {999}


@pytest.mark.parametrize(
    ("factors", "found"),
    [({}, {"program/mfu": 35.2, "step_time": 8.0}),
    ({"mfu": 0.01, "step_time": 0.001},
    {"program/mfu": 35.2, "mfu": 0.352, "step_time": 8.0, "step_time_s": 0.008})],
)  # fmt: skip
def test_name_without_a_unit_is_a_metric_of_lehr_only_with_its_factor(attempt, factors, found):
    """nanoGPT logs its mfu in percent."""
    attempt.recorder._factors = factors
    attempt.write(kind="metrics", step=1, time=1, values={"mfu": 35.2, "step_time": 8.0})
    attempt.tail.read()
    assert attempt.records()[0]["values"] == pytest.approx(found)


@pytest.mark.parametrize(
    ("path", "warning"),
    [
        ("{work}/" + "a" * 5000, "checkpoint_failed"),
        ("{work}/a\0", "no_checkpoint"),
        ("{work}/\ud800", "no_checkpoint"),
        ("{work}/gone", "no_checkpoint"),
        ("{work}/state.txt/x", "checkpoint_failed"),
        ("{work}/../../secret", "checkpoint_outside"),
        ("/", "checkpoint_outside"),
    ],
)
def test_checkpoint_of_an_odd_path_is_left_out(attempt, path, warning):
    full = path.replace("{work}", str(attempt.place.folder))
    attempt.write(kind="checkpoint", step=1, path=full)
    attempt.tail.read()
    assert [one["kind"] for one in attempt.records()] == ["warning"]
    assert attempt.warnings() == [warning]


def test_final_look_ends_while_a_process_left_behind_still_logs(attempt, monkeypatch):
    taken = []

    def metrics(step: int, values: dict, at: float) -> None:
        taken.append(step)
        assert step < 10, "it reads what is written while it reads"
        attempt.write(kind="metrics", step=step + 1, values={"a": 1})

    monkeypatch.setattr(attempt.recorder, "metrics", metrics)
    attempt.write(kind="metrics", step=1, values={"a": 1})
    attempt.tail.read(fully=True)
    assert taken == [1]


@pytest.mark.parametrize(
    ("changed", "step", "why"),
    [
        (11.0, 1, "saved just after the record of its step"),
        (19.9, 2, "saved just before the record of its step, as Lightning does"),
        (30.004, 4, "the file's clock may be behind, so that record came before the save"),
        (24.0, 2, "the next record is much later"),
        (99.0, 4, "there is no later record"),
        (1.0, 0, "before any record"),
    ],
)
def test_step_of_a_file_is_that_of_the_nearest_record(attempt, changed, step, why):
    for number, at in enumerate((10.0, 20.0, 30.0, 30.018), 1):
        attempt.recorder.metrics(number, {"loss": 1.0}, at=at)
    assert attempt.recorder.step_of_file(changed) == step, why


def csv_source(folder: Path) -> FileSource:
    return sources(folder, folder / "wandb")[2]


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
    source = sources(tmp_path, tmp_path / "wandb")[1]
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
