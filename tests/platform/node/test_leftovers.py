"""Processes that a training leaves behind: the shim finds them, whatever they did to hide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from lehr.node import leftovers
from lehr_testing.waiting import until

PROGRAM = """
    import os, sys, time

    folder = sys.argv[1]
    note = f"import os, time; open({folder!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if HOW == "cleared":
                os.execve(sys.executable, [sys.executable, "-c", note], {})
            # Its own child has a cleared environment, and it ends before that one.
            if os.fork() == 0:
                os.setsid()
                os.execve(sys.executable, [sys.executable, "-c", note], {})
            open(f"{folder}/{os.getpid()}", "w").close()
            time.sleep(600)
        os._exit(0)
    while len(os.listdir(folder)) < (1 if HOW == "cleared" else 2):
        time.sleep(0.01)
"""
SHIM = """
    import json, os, sys, time
    from lehr.base import procfs
    from lehr.node import subprocesses
    from lehr.node.attempt_dir import AttemptDir
    from lehr.node.shim import SIGNALS, Shim
    import signal

    folder, program = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    procfs.adopt_orphans()
    gang = {"per_node": 1, "nodes": 1, "node_rank": 0}
    launch = {"gang": gang, "attempt_dir": folder, "env": {}, "nonce": "n0nce"}
    shim = Shim(AttemptDir(folder), launch)

    def start(command, **more):
        environment = {**os.environ, **more}
        return subprocesses.start(command, environment=environment, folder="/")

    shim.shipper = start([sys.executable, "-c", "import time; time.sleep(600)"])
    shim.trainer = start([sys.executable, "-c", program, folder], **{procfs.MARK: "n0nce"})
    shim.wait_for_trainer()
    left = shim.kill_all()
    zombies = len(procfs.pids()) and [
        pid for pid in procfs.pids() if procfs.start_time(pid) is None and os.path.exists(f"/proc/{pid}")
        and int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) == os.getpid()
    ]
    print(json.dumps([left, shim.shipper is not None and shim.shipper.poll() is None, zombies]))
"""


HIDDEN = """
    import os, subprocess, sys, time

    folder = sys.argv[1]
    note = f"import os, time; open({folder!r} + '/' + str(os.getpid()), 'w').close(); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", note], env={})
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(sys.executable, [sys.executable, "-c", note], {})
        os._exit(0)
    time.sleep(600)
"""
KILLED_SHIM = """
    import os, sys, time
    from lehr.node import leftovers, subprocesses
    from lehr.base import procfs
    from lehr.node.attempt_dir import AttemptDir

    folder, program = sys.argv[1:]
    procfs.adopt_orphans()
    leftovers.EACH_S = 0.1
    found = leftovers.Leftovers(AttemptDir(folder), "n0nce")
    environment = {**os.environ, procfs.MARK: "n0nce"}
    command = [sys.executable, "-c", program, folder]
    child = subprocesses.start(command, environment=environment, folder="/")
    while True:
        found.record(child.pid)
        time.sleep(0.05)
"""
NEXT_SHIM = """
    import os, sys, time
    from lehr.node.attempt_dir import AttemptDir
    from lehr.node.leftovers import Leftovers

    found = Leftovers(AttemptDir(sys.argv[1]), "n0nce")
    print(found.kill({os.getpid()}, lambda: time.sleep(0.02)))
"""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def daemons_of(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdigit()]


@pytest.mark.parametrize("how", ["cleared", "child of a daemon"])
def test_daemon_with_a_cleared_environment_ends_with_the_training(tmp_path, how):
    program = f"HOW = {how!r}\n" + dedent(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", dedent(SHIM), str(tmp_path), program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    daemons = daemons_of(tmp_path)
    try:
        assert done.stderr == ""
        assert len(daemons) == (1 if how == "cleared" else 2)
        left, ships, zombies = json.loads(done.stdout)
        assert (left, ships, zombies) == ([], True, [])
        until(lambda: not any(map(alive, daemons)), within_s=30, what="the end of the daemons")
    finally:
        for pid in filter(alive, daemons):
            os.kill(pid, signal.SIGKILL)


def finalize(folder: Path) -> None:
    """Kill what is left of an attempt whose shim was killed."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(NEXT_SHIM), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_processes_with_a_cleared_environment_are_found_when_the_shim_was_killed(tmp_path):
    record = tmp_path / leftovers.RECORD

    def recorded() -> bool:
        known = json.loads(record.read_text())["processes"] if record.exists() else {}
        daemons = daemons_of(tmp_path)
        return len(daemons) == 2 and all(str(pid) in known for pid in daemons)

    command = [sys.executable, "-c", dedent(KILLED_SHIM), str(tmp_path), dedent(HIDDEN)]
    with subprocess.Popen(command) as shim:
        until(recorded, within_s=60, what="the record of two processes")
        shim.kill()
    daemons = daemons_of(tmp_path)
    try:
        assert all(map(alive, daemons))
        finalize(tmp_path)
        until(lambda: not any(map(alive, daemons)), within_s=30, what="the end of the daemons")
    finally:
        for pid in filter(alive, daemons):
            os.kill(pid, signal.SIGKILL)


def test_children_that_end_are_reaped_and_keep_their_exit_code():
    text = """
        import os, sys, time
        from lehr.base import procfs
        from lehr.node import subprocesses
        procfs.adopt_orphans()
        orphans = "import os\\nfor _ in range(20):\\n if os.fork() == 0:\\n  os.fork() or os._exit(0); os._exit(0)"
        command = [sys.executable, "-c", orphans + "\\nraise SystemExit(7)"]
        child = subprocesses.start(command, environment=dict(os.environ), folder="/")
        deadline = time.monotonic() + 30
        while child.poll() is None or procfs.children(os.getpid()):
            subprocesses.reap_orphans()
            assert time.monotonic() < deadline
        time.sleep(0.2)
        subprocesses.reap_orphans()
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print(child.returncode, "none left")
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(text)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("7 none left\n", "")
