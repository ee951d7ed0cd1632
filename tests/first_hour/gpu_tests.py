"""Every file of ``tests/gpu`` as a part: they run by pytest, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from first_hour.parts import Failed, Machine, NotHere, Outcome, Part, Result, Session
from lehr_testing import tiers
from lehr_testing.paths import ROOT

GROUP = "Tests"


def parts() -> list[Part]:
    files = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    return [Part(f"tests: {file.stem}", GROUP, partial(act, file=file)) for file in files]


def act(session: Session, *, file: Path) -> Result:
    """Run the tests of one file; on a machine without a GPU they are all skipped."""
    work = session.work(f"tests: {file.stem}")
    report, log = work / "report.xml", work / "output.txt"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}", str(file)]
    with log.open("w") as output:
        limit = None if session.deadline is None else max(1.0, session.left_s)
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired as error:
            raise session.out_of_time() from error
    if done.returncode != 0:
        failed = [
            line for line in log.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))
        ]
        reasons = "; ".join(failed) or f"pytest ended with {done.returncode}"
        raise Failed(f"{reasons}. All of it: {log}")
    found = tiers.outcome(report)
    if not found.passed:
        raise NotHere(f"all {found.skipped} tests were skipped")
    return Result({"passed": found.passed, "skipped": found.skipped})


def note_tier(machine: Machine, outcomes: Sequence[Outcome]) -> bool:
    """Write the tier's row of tests/TIERS.md if every file passed at this commit, without changes."""
    tests = [one for one in outcomes if one.group == GROUP and one.status == "passed"]
    complete = len(tests) == len(parts()) and {one.commit for one in tests} == {machine.commit}
    if not (machine.on_cuda and complete) or machine.commit is None:
        return False
    passed, skipped = (sum(one.figures[key] for one in tests) for key in ("passed", "skipped"))
    seconds = sum(one.seconds for one in tests)
    tiers.record("gpu", machine.commit, tiers.Outcome(passed, skipped, seconds))
    return True
