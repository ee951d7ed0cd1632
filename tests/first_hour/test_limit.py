"""A session with a time limit: what is worth most runs first, what no longer fits is named."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from first_hour import __main__, bench, gpu_tests, trained
from first_hour.parts import Machine, OutOfTime, Part, Result, Session, Settings
from first_hour.session import run
from lehr_testing.paths import ROOT

HERE = Machine("cpu", (), "2.13.0", "abc")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def limited(
    folder: Path, minutes: float | None, *, bench_budget_s: float = 1800.0
) -> tuple[Session, Clock]:
    clock = Clock()
    deadline = None if minutes is None else clock.now + 60 * minutes
    settings = Settings("tiny", bench_budget_s, minutes=minutes)
    return Session(folder, HERE, settings, lambda _line: None, deadline, clock), clock


def taking(clock: Clock, name: str, minutes: float, group: str = "Runs", **more: Any) -> Part:
    def act(_session: Session) -> Result:
        clock.now += 60 * minutes
        return Result({"loss": 1.0})

    return Part(name, group, act, **more)


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


def test_no_part_begins_that_took_longer_before_than_there_is_time(tmp_path: Path) -> None:
    session, clock = limited(tmp_path, 10)
    parts = [
        taking(clock, "check", 1, "Checks"),
        taking(clock, "run: a", 2),
        taking(clock, "run: b", 3),
        taking(clock, "run: c", 2),
        # Two minutes are left, and the longest run took three.
        taking(clock, "run: d", 1),
        # Parts of another kind are not known to be so long.
        taking(clock, "run: compiled", 1, compiles=True),
        taking(clock, "ranks: a", 0.5, "Ranks"),
        taking(clock, "ranks: b", 1, "Ranks"),
        taking(clock, "bench: a", 0.5, "Ranks", keeps_to_limit=True),
        taking(clock, "table", 0, "Bench", always=True),
    ]
    outcomes = run(session, parts)
    assert [o.name for o in outcomes] == [
        "check", "run: a", "run: b", "run: c", "run: compiled", "ranks: a", "bench: a", "table",
    ]  # fmt: skip
    left = ["run: d", "ranks: b"]
    assert [p["name"] for p in report(tmp_path)["parts"] if p["status"] == "not run yet"] == left
    assert report(tmp_path)["did_not_fit"] == {"minutes": 10, "parts": left}
    text = (tmp_path / "report.md").read_text()
    assert "**Not run, because they did not fit into 10 minutes:** run: d, ranks: b." in text


def test_without_a_limit_all_parts_run_and_nothing_is_left_out(tmp_path: Path) -> None:
    session, clock = limited(tmp_path, None)
    outcomes = run(session, [taking(clock, f"run: {name}", 1000) for name in "abc"])
    assert [o.status for o in outcomes] == ["passed"] * 3
    assert report(tmp_path)["did_not_fit"] is None
    assert "did not fit" not in (tmp_path / "report.md").read_text()


def test_parts_that_passed_before_take_no_time(tmp_path: Path) -> None:
    session, clock = limited(tmp_path, 10)
    parts = [taking(clock, "run: a", 6), taking(clock, "run: b", 1)]
    assert [o.name for o in run(session, parts)] == ["run: a"]
    again, clock = limited(tmp_path, 10)
    parts = [taking(clock, "run: a", 6), taking(clock, "run: b", 1)]
    assert [o.status for o in run(again, parts)] == ["passed", "passed"]
    assert report(tmp_path)["did_not_fit"] is None


def test_training_that_the_limit_ends_is_unfinished_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, clock = limited(tmp_path, 2)
    given: list[float] = []

    def never_ends(_process: object, *, within_s: float) -> tuple[int, str]:
        given.append(within_s)
        clock.now += within_s
        raise subprocess.TimeoutExpired("python", within_s)

    class Process:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(trained, "finish", never_ends)
    monkeypatch.setattr(trained, "training", lambda *_, **__: Process())
    part = Part("run: a", "Runs", lambda s: Result({"attempt": trained.train(s, tmp_path / "a")}))
    [outcome] = run(session, [part])
    assert (outcome.status, given) == ("unfinished", [120.0])
    assert outcome.reason == "the session's 2 minutes were over; a further call begins it again"
    # Without a limit it is a training that takes far too long.
    alone, clock = limited(tmp_path, None)
    [outcome] = run(alone, [part])
    assert (outcome.status, given[1:]) == ("failed", [trained.TIMEOUT_S])


def test_tests_that_the_limit_ends_are_unfinished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = limited(tmp_path, 3)

    def pytest_process(_command: list[str], *, timeout: float | None, **_: Any) -> None:
        raise subprocess.TimeoutExpired("pytest", timeout or 0.0)

    stand_in = SimpleNamespace(
        run=pytest_process, STDOUT=subprocess.STDOUT, TimeoutExpired=subprocess.TimeoutExpired
    )
    monkeypatch.setattr(gpu_tests, "subprocess", stand_in)
    with pytest.raises(OutOfTime, match="3 minutes were over"):
        gpu_tests.act(session, file=tmp_path / "test_x.py")


@pytest.mark.parametrize(
    ("minutes", "budget_s"), [(None, 1800.0), (60.0, 1800.0), (5.0, 300.0)], ids=str
)
def test_bench_begins_no_row_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: float | None, budget_s: float
) -> None:
    commands: list[list[str]] = []

    def process(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0, stdout='{"rows": []}')

    monkeypatch.setattr(bench.subprocess, "run", process)
    session, _ = limited(tmp_path, minutes)
    bench.measured(session, "target")
    assert f"--budget-s={budget_s}" in commands[0]


@pytest.mark.parametrize("gpus", [(), ("NVIDIA H100 80GB HBM3",)], ids=["rehearsal", "gpu"])
def test_only_a_rehearsal_measures_two_sequences_and_compiles_without_optimization(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: tuple[str, ...]
) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    def process(command: list[str], *, env: dict[str, str], **_: Any) -> SimpleNamespace:
        calls.append((command, env))
        return SimpleNamespace(returncode=0, stdout='{"rows": []}')

    monkeypatch.setattr(bench.subprocess, "run", process)
    machine = Machine("cuda" if gpus else "cpu", gpus, "2.13.0", None)
    bench.measured(Session(tmp_path, machine, Settings("tiny", 60.0), print), "target")
    [(command, environment)] = calls
    assert set(bench.REHEARSED).isdisjoint(command) is bool(gpus)
    assert environment == os.environ | ({} if gpus else bench.QUICK_COMPILER)


@pytest.mark.parametrize("gpus", [1, 8])
def test_parts_are_ordered_by_value_after_what_they_need(tmp_path: Path, gpus: int) -> None:
    machine = Machine("cuda", ("NVIDIA H100 80GB HBM3",) * gpus, "2.13.0", None)
    session = Session(tmp_path, machine, Settings("tiny", 60.0), lambda _line: None)
    names = [part.name for part in __main__.every_part(session)]
    place = {name: index for index, name in enumerate(names)}
    assert len(place) == len(names)
    kinds = [name.split(":")[0] for name in names]
    assert kinds.index("tests") > max(i for i, kind in enumerate(kinds) if kind == "checks")
    # What a user's first training does, before techniques; the target's rows before all others.
    assert place["run: plain"] < place["run: blocks compiled"] < place["run: masks"]
    assert place["ranks: like one"] < place["bench: target"] < place["run: masks"]
    assert all(
        place["run: plain"] < place[n] for n in names if n.startswith("run: ") and n != "run: plain"
    )
    alone, kept = "ranks: alone", "ranks: like one"
    several = [n for n in names if n.startswith("ranks: ") and n != alone]
    assert place[alone] < place[kept] == min(place[n] for n in several)
    for count in {4, 8} & {gpus}:
        assert place[f"ranks: like one, {count}"] < place[f"ranks: fast, {count}"]
    assert names[-1] == "bench: table"


def test_documents_have_the_number_of_parts(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(.+?)` \| (\d+) \|", (ROOT / "docs/gpu.md").read_text(), re.MULTILINE)
    machine = Machine("cuda", ("NVIDIA H100 80GB HBM3",) * 2, "2.13.0", None)
    session = Session(tmp_path, machine, Settings("tiny", 60.0), print)
    names = [part.name for part in __main__.every_part(session)]
    patterns = sorted((pattern for pattern, _ in rows), key=len, reverse=True)
    # A part belongs to the longest pattern.
    found = Counter(next((p for p in patterns if fnmatchcase(n, p)), n) for n in names)
    assert found == {pattern: int(number) for pattern, number in rows}


def test_limit_is_an_option_and_must_be_positive(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    only = "--only=checks: disk"
    assert __main__.main(["--rehearse", f"--out={tmp_path}", "--minutes=1e-9", only]) == 0
    output = capfd.readouterr().out
    assert "did not fit into 1e-09 minutes: checks: disk; call it again for them" in output
    assert report(tmp_path)["did_not_fit"]["parts"] == ["checks: disk"]
    assert __main__.main(["--rehearse", f"--out={tmp_path}", "--minutes=5", only]) == 0
    assert report(tmp_path)["did_not_fit"] is None
    with pytest.raises(SystemExit):
        __main__.main(["--rehearse", "--minutes=0"])
    assert "--minutes: 0 is not a positive number" in capfd.readouterr().err
