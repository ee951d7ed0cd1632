"""What ``lehr down`` prints. The stop itself: e2e/test_restarts.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lehr.faces.cli import last_start, shutdown
from lehr.faces.cli.last_start import ServerOptions, Start
from lehr.node.stop import End, StoppedTrainings


@pytest.mark.parametrize("ignored", [False, True])
def test_server_is_said_to_be_killed_only_if_it_does_not_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: bool
) -> None:
    # It holds the lock of its home, and has not written its address yet.
    program = (
        "import fcntl, os, signal, time\n"
        "lock = open('lehr.lock', 'w'); fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "print(os.getpid(), file=lock, flush=True); signal.signal(15, signal.SIG_IGN)\n"
        "print(flush=True); time.sleep(60)"
    )
    if not ignored:
        program = program.replace("SIG_IGN", "SIG_DFL")
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=tmp_path)
    server.stdout.readline()
    last_start.write(tmp_path, Start(server.pid, ServerOptions()))
    monkeypatch.setattr(shutdown, "SERVER_TIMEOUT_S", 1.0 if ignored else shutdown.SERVER_TIMEOUT_S)
    [stopped] = shutdown.take_down(tmp_path, keep_runs=False, timeout_s=1).stopped
    expected = "the server (killed: it did not end within 1 s)" if ignored else "the server"
    assert stopped == expected


def ends_shown(capsys: pytest.CaptureFixture[str], *ends: End) -> list[str]:
    given = {f"run{n}-1": end for n, end in enumerate(ends)}
    shutdown.show_ends(StoppedTrainings(given).counts, then="The next lehr up")
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split()).split(". ")


def test_each_way_to_end_is_named_with_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ends_shown(capsys, *End, End.SAVED, End.KILLED)
    assert lines == [
        "2 trainings were saved",
        "The next lehr up resumes them",
        "1 training was stopped without a report of a save",
        "The next lehr up resumes it from the last checkpoint",
        "1 training was over: completed, failed, paused or cancelled",
        "! 2 trainings were killed: saving took too long",
        "The next lehr up resumes them from the last checkpoint.",
    ]


def test_nothing_is_printed_of_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends_shown(capsys) == [""]
