"""Odd lines in the log of a program: each is recorded or left out, and none ends the supervisor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.node.programs.keeper import Keeper
from lehr.node.programs.log_tail import LogTail
from lehr.node.programs.program_dir import ProgramDir
from lehr.node.programs.recorder import Recorder
from lehr.specs.program import Program
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
    attempt.write(kind="metrics", step=10**400, values={"b": 4})
    attempt.tail.read()
    found = [one["values"]["b"] for one in attempt.records() if one["kind"] == "metrics"]
    assert found == [2, 3]
    assert "a" not in attempt.records()[0]["values"]
    assert attempt.warnings() == ["bad_step"]


@pytest.mark.parametrize(("digest", "recorded"), [("a" * 64, ["a" * 64]), ("a", []), (None, [])])
def test_digest_of_the_held_out_set_is_recorded(attempt, digest, recorded):
    attempt.write(kind="validation_data", step=0, digest=digest)
    attempt.tail.read()
    records = [one for one in attempt.records() if one["kind"] == "evaluation"]
    assert [one["validation_digest"] for one in records] == recorded
    assert attempt.warnings() == ([] if recorded else ["bad_line"])


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
