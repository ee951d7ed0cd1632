"""A session keeps what is finished, goes on after an interruption, and reports every failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from first_hour import gpu_tests
from first_hour.parts import Failed, Machine, NotHere, Outcome, Part, Result, Session, Settings
from first_hour.session import run
from lehr_testing import tiers

HERE = Machine("cpu", (), "2.13.0", "abc")


def session(folder: Path, machine: Machine = HERE, *, compiles: bool = True) -> Session:
    return Session(folder, machine, Settings("tiny", 60.0, compile=compiles), lambda _line: None)


class Acts:
    """Parts that count their calls and end as ``ends`` has it at that time."""

    def __init__(self, **ends: Exception | Result | BaseException) -> None:
        self.ends = ends
        self.calls: list[str] = []
        self.parts = [Part(name, "All", self._act(name)) for name in ends]

    def _act(self, name: str):
        def act(_session: Session) -> Result:
            self.calls.append(name)
            end = self.ends[name]
            if isinstance(end, BaseException):
                raise end
            return end

        return act


def report(folder: Path) -> dict:
    found = json.loads((folder / "report.json").read_text())
    return {part["name"]: part for part in found["parts"]}


def test_failed_part_is_reported_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    acts = Acts(
        good=Result({"loss": 3.25}),
        bad=Failed("the loss did not fall"),
        broken=ZeroDivisionError("division by zero"),
        absent=NotHere("needs 2 GPUs"),
        last=Result(text="a table"),
    )
    statuses = {o.name: (o.status, o.reason) for o in run(session(tmp_path), acts.parts)}
    assert statuses == {
        "good": ("passed", ""),
        "bad": ("failed", "the loss did not fall"),
        "broken": ("failed", "ZeroDivisionError: division by zero"),
        "absent": ("not here", "needs 2 GPUs"),
        "last": ("passed", ""),
    }
    assert {name: part["status"] for name, part in report(tmp_path).items()} == {
        name: status for name, (status, _) in statuses.items()
    }
    text = (tmp_path / "report.md").read_text()
    assert "the loss did not fall" in text
    assert "3.25" in text
    assert "a table" in text


def test_second_call_runs_only_what_has_not_passed(tmp_path: Path) -> None:
    acts = Acts(a=Result(), b=Failed("no"), c=NotHere("no package"), d=Result(unfinished="2 rows"))
    run(session(tmp_path), acts.parts)
    acts.calls.clear()
    acts.ends["b"] = Result({"x": 1.0})
    outcomes = run(session(tmp_path), acts.parts)
    assert acts.calls == ["b", "c", "d"]
    assert [o.status for o in outcomes] == ["passed", "passed", "not here", "unfinished"]


def test_interrupted_session_keeps_finished_parts_and_its_report(tmp_path: Path) -> None:
    acts = Acts(a=Result({"speed": 7.0}), b=KeyboardInterrupt(), c=Result())
    with pytest.raises(KeyboardInterrupt):
        run(session(tmp_path), acts.parts)
    assert [p["status"] for p in report(tmp_path).values()] == [
        "passed",
        "not run yet",
        "not run yet",
    ]
    acts.ends["b"] = Result()
    acts.calls.clear()
    run(session(tmp_path), acts.parts)
    assert acts.calls == ["b", "c"]


@pytest.mark.parametrize(
    "other",
    [Machine("cuda", ("NVIDIA H200",), "2.13.0", "abc"), Machine("cpu", (), "2.14.0", "abc")],
)
def test_results_of_another_machine_are_not_kept(tmp_path: Path, other: Machine) -> None:
    acts = Acts(a=Result())
    run(session(tmp_path), acts.parts)
    run(session(tmp_path, other), acts.parts)
    assert acts.calls == ["a", "a"]


def test_result_of_another_commit_is_kept_and_marked(tmp_path: Path) -> None:
    acts = Acts(a=Result())
    run(session(tmp_path), acts.parts)
    run(session(tmp_path, Machine("cpu", (), "2.13.0", "def")), acts.parts)
    assert acts.calls == ["a"]
    assert "(at commit abc)" in (tmp_path / "report.md").read_text()


def test_compiling_parts_are_left_out_on_request(tmp_path: Path) -> None:
    act = Acts(a=Result())
    part = Part("a", "All", act.parts[0].act, compiles=True)
    [outcome] = run(session(tmp_path, compiles=False), [part])
    assert (outcome.status, act.calls) == ("not here", [])


def test_tier_is_recorded_only_if_every_file_passed_at_one_commit(monkeypatch) -> None:
    noted: list[tuple] = []
    monkeypatch.setattr(tiers, "record", lambda *args: noted.append(args))
    machine = Machine("cuda", ("NVIDIA H100 80GB HBM3",), "2.13.0", "abc")

    def outcomes(commit: str = "abc", status: str = "passed") -> list[Outcome]:
        return [
            Outcome(
                p.name,
                p.group,
                status,
                seconds=2.0,
                commit=commit,
                figures={"passed": 3, "skipped": 1},
            )
            for p in gpu_tests.parts()
        ]

    every = outcomes()
    assert not gpu_tests.note_tier(machine, every[1:])
    assert not gpu_tests.note_tier(machine, [*every[1:], *outcomes("def")[:1]])
    assert not gpu_tests.note_tier(machine, [*every[1:], *outcomes(status="failed")[:1]])
    assert not gpu_tests.note_tier(HERE, every)
    assert not gpu_tests.note_tier(Machine("cuda", (), "2.13.0", None), outcomes(None))
    assert noted == []
    assert gpu_tests.note_tier(machine, every)
    files = len(every)
    assert noted == [("gpu", "abc", tiers.Outcome(3 * files, files, 2.0 * files))]
