"""Forked processes behave like those started from a command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.forking import Forked, fork
from lehr_testing.paths import TESTS
from lehr_testing.trainer import rank_pids
from lehr_testing.waiting import until

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
SLEEP = "import time; time.sleep(600)"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(*pids: int) -> None:
    until(lambda: not any(map(alive, pids)), within_s=30, what="the processes to be gone")


@contextmanager
def forked(**options: Any) -> Iterator[Forked]:
    process = fork(None, **{"environment": ENVIRONMENT, **options})
    try:
        yield process
    finally:
        process.end_session()
        process.close()


def test_variables_read_at_import_are_refused_in_a_fork() -> None:
    with pytest.raises(ValueError, match="OMP_NUM_THREADS is read at imports"):
        fork(None, environment={**ENVIRONMENT, "OMP_NUM_THREADS": "2"})


def test_a_rank_that_fails_ends_the_others() -> None:
    code = f"import os, sys\nif os.environ['RANK'] == '1':\n    sys.exit(7)\n{SLEEP}"
    with forked(ranks=3, code=code) as process:
        ranks = rank_pids(process)
        process.communicate(60)
        assert process.returncode == 1
        gone(*ranks)


def test_ranks_end_with_their_launcher() -> None:
    with forked(ranks=2, code=SLEEP) as process:
        ranks = until(
            lambda: len(found := rank_pids(process)) == 2 and found, within_s=30, what="two ranks"
        )
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        gone(*ranks)


def test_nothing_is_left_when_the_tests_are_killed() -> None:
    script = (
        "import os\n"
        "from lehr_testing.forking import Server\n"
        "server = Server(preloaded=())\n"
        f"process = server.fork(None, environment=server.environment, code={SLEEP!r})\n"
        "print(server.process.pid, process.pid, flush=True)\n"
        "os.read(0, 1)\n"
    )
    tests = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**ENVIRONMENT, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert tests.stdout is not None
        pids = [int(pid) for pid in tests.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
    finally:
        tests.kill()
        tests.communicate()
    try:
        gone(*pids)
    finally:
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
