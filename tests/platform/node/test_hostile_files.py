"""What a training writes may be anything: its exit is recorded, and its node still reports."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.analysis.curve_files.text import csv_points
from lehr.base import procfs
from lehr.control.exits import sound_exit
from lehr.node import exit_report, shipper
from lehr.node.agent import Agent
from lehr.node.attempt_dir import AttemptDir
from lehr.node.programs.keeper import Keeper
from lehr.node.programs.log_tail import LogTail
from lehr.node.programs.program_dir import ProgramDir, read_program
from lehr.node.programs.recorder import Recorder
from lehr.node.programs.supervisor import notes
from lehr.node.shipper import Shipper
from lehr.specs.program import Program
from lehr_testing import hostile
from lehr_trainer.contract.orders import read_orders
from lehr_trainer.errors import BadConfig
from lehr_trainer.runtime.event_stream import EventStream

FINISHED = hostile.fields("finished")
NESTED = tuple('{"a":' * depth + "1" + "}" * depth for depth in (300, 960, 990, 8_000))
"""Python's limit is 1,000, with the frames of the caller: each reader has another one."""


def last_lines() -> list[bytes]:
    values = (*hostile.VALUES, *NESTED)
    return [
        *(value.encode() + b"\n" for value in values),
        *(
            hostile.line({**FINISHED, name: value})
            for name in ("step", "message", "more")
            for value in values
        ),
    ]


@pytest.fixture(autouse=True)
def usual_recursion_limit():
    """Python's own limit: libraries that other tests import raise it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def build(folder: Path) -> dict[str, Any]:
    return exit_report.build(str(folder), code=1, reason="", detail="", started_at=1.0, boot_id="b")


def at_depth(frames: int, act: Any) -> Any:
    return act() if frames == 0 else at_depth(frames - 1, act)


def test_exit_is_recorded_whatever_the_last_line_of_the_trainer_is(tmp_path):
    for line in last_lines():
        (tmp_path / "events.jsonl").write_bytes(line)
        report = build(tmp_path)
        path = str(tmp_path / "exit.json")
        procfs.write_json(path, report)
        # An agent reads it with the frames of Ray below it, and the server what the bridge passes on.
        read = at_depth(100, lambda: procfs.read_json(path))  # noqa: B023
        assert read == report, line[:100]
        listed = json.dumps({"attempts": {"a": {"exit": read}}})
        assert at_depth(100, lambda: json.loads(listed)), line[:100]  # noqa: B023
        assert sound_exit(report)["code"] == 1
    (tmp_path / "events.jsonl").write_bytes(hostile.line({**FINISHED, "more": NESTED[0]}))
    assert build(tmp_path)["finished"] == {
        name: json.loads(FINISHED[name]) for name in ("outcome", "step", "cause", "message")
    }


def test_folder_of_an_attempt_that_cannot_be_read_leaves_the_others_in_the_list(
    tmp_path, monkeypatch, capsys
):
    agent = Agent("n1", 0, str(tmp_path / "node"))
    for name in ("odd-1", "sound-1"):
        folder = agent.attempts / name
        folder.mkdir()
        procfs.write_json(str(folder / "launch.json"), {"gpus": [3]})
        procfs.write_json(str(folder / "shim.json"), {})
        procfs.write_json(str(folder / "exit.json"), {"code": 0})
    (agent.attempts / "a stray file").touch()
    exit_of = AttemptDir.exit

    def read(entry: AttemptDir) -> Any:
        if entry.attempt_id == "odd-1":
            raise OSError(5, "Input/output error")
        return exit_of(entry)

    monkeypatch.setattr(AttemptDir, "exit", read)
    monkeypatch.setattr(agent, "_finalize_orphan", lambda entry: None)
    assert agent.report()["attempts"] == {
        # Its processes may live.
        "odd-1": {"state": "live", "gpus": [], "exit": None},
        "sound-1": {"state": "ended", "gpus": [3], "exit": {"code": 0}},
    }
    assert "odd-1" in capsys.readouterr().err


def shipped(attempt: Path) -> list[int]:
    (attempt / "rank-1.log").mkdir()
    return [shipper._size(str(attempt / f"rank-{rank}.log")) for rank in (0, 1)]


def logged(attempt: Path) -> list[str]:
    place = ProgramDir(attempt, None)
    events = EventStream(attempt / "e.jsonl")
    recorder = Recorder(events, tokens_per_step=1)
    for _ in range(2):  # The warning is said once.
        LogTail(place, recorder, Keeper(place, Program(script="a.py"), events, recorder)).read()
    return re.findall("unreadable_log|no such", (attempt / "e.jsonl").read_text())


def config_problem(attempt: Path) -> str:
    with pytest.raises(BadConfig) as caught:
        read_program(attempt.parent)
    return str(caught.value).partition(": ")[2]


def csv_problem(path: Path) -> str:
    with pytest.raises(OSError, match="not a regular file"):
        list(csv_points(path, lambda _: True, set()))
    return "regular"


READERS: dict[str, tuple[str, Callable[[Path], Any], Any]] = {
    "the log of an exit": ("x.log", lambda a: exit_report.log_tail(str(a)), ""),
    "the last record": ("events.jsonl", lambda a: exit_report.finished(str(a)), None),
    "orders": ("orders.json", lambda a: read_orders(a / "orders.json").desired, "run"),
    "what is shipped": ("rank-0.log", shipped, [0, 0]),
    "a failure's note": ("failure-rank-1.json", notes, []),
    "a JSON file": ("exit.json", lambda a: procfs.read_json(str(a / "exit.json")), None),
    "the program's log": ("log-0.jsonl", logged, ["unreadable_log"]),
    "the config": ("../config.yaml", config_problem, "it is not a regular file"),
    "a CSV file": ("work/metrics.csv", lambda a: csv_problem(a / "work/metrics.csv"), "regular"),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("reader", READERS)
def test_pipe_in_place_of_a_file_of_a_run_is_not_opened(tmp_path, reader):
    name, read, expected = READERS[reader]
    (tmp_path / "attempt-1/work").mkdir(parents=True)
    os.mkfifo(tmp_path / "attempt-1" / name)
    assert read(tmp_path / "attempt-1") == expected


def test_shipper_reads_steps_from_any_lines():
    shipper = Shipper.__new__(Shipper)
    shipper.step = None
    for kind in hostile.KINDS:
        for what, line in hostile.lines(kind):
            shipper.note_step(line)
            # The limits of a heartbeat's step: another one would be rejected.
            assert shipper.step is None or 0 <= shipper.step <= 1 << 60, what
    nested = NESTED[-1].replace("a", "step").encode()
    odd = (b'["step"]', b'"step"', b'{"step": true}', b'{"step": -1}', nested)
    shipper.note_step(b"\n".join([b'{"step": 4}', *odd, b""]))
    assert shipper.step == 4
