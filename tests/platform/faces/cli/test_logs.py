"""``lehr logs -f`` on a growing log, with a real server without a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.control.lifecycle import RunState
from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, TOKEN, begin, end, ingest, served, started

LEHR = str(Path(sys.executable).parent / "lehr")
LOG = "rank-0.log"


@pytest.fixture
def api(tmp_path):
    with served(tmp_path / "home") as (made, address):
        made.address = address
        yield made


@pytest.fixture
def follow(api):
    """Starts `lehr logs ... -f`; whatever still runs at the end is killed."""
    begun = []

    def start(*args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [LEHR, "--server", api.address, "logs", *args, "-f"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LEHR_TOKEN": TOKEN, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"},
        )
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def training(api) -> tuple[str, str]:
    """Start a run that has printed two lines; return its id and that of its attempt."""
    run = api.store.runs.create(load_spec(RUN_SPEC))
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started())
    ingest(api.store, attempt, b"step 1\nstep 2\n", LOG)
    return run.id, attempt


@pytest.mark.timeout(180)
def test_lines_are_printed_as_they_come_until_the_run_ends(api, follow):
    run, attempt = training(api)
    following = follow("one")
    assert [following.stdout.readline() for _ in range(2)] == ["step 1\n", "step 2\n"]
    # Only a command that follows is there to print these: it has printed all that there was.
    # As tqdm does with a bar inside of another one.
    ingest(api.store, attempt, b"\r 50%|#\x1b[A\n10%\r90%\rstep 3\r\nstep", LOG)
    assert following.stdout.readline() == "step 3\n"
    ingest(api.store, attempt, b" 4\n", LOG)
    assert following.stdout.readline() == "step 4\n"
    assert following.poll() is None
    ingest(api.store, attempt, b"bye, without an end of line", LOG)
    end(api.store, run)
    left, errors = following.communicate(timeout=120)
    assert (left, errors, following.returncode) == ("bye, without an end of line\n", "", 0)


@pytest.mark.timeout(180)
def test_follow_begins_with_the_last_lines_and_includes_later_attempts(api, follow):
    run, attempt = training(api)
    following = follow("one", "-n", "1")
    assert following.stdout.readline() == "step 2\n"
    store = api.store
    running, queued = RunState.RUNNING, RunState.QUEUED
    assert store.transitions.apply(
        run, old=running, new=queued, attempt=1, cause="node_lost", actor="dispatcher"
    )
    store.attempts.close(attempt)
    second = begin(store, run, 2)
    ingest(store, second, b"again\n", LOG)
    assert following.stdout.readline() == "again\n"
    following.send_signal(signal.SIGINT)
    left, errors = following.communicate(timeout=120)
    assert (left, following.returncode) == ("", 0)
    assert "Detached. The run continues." in errors
