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

from lehr.base import procfs
from lehr_testing.full_log import full_log
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


def test_line_is_written_at_once(capfd):
    procfs.log("beta: no answer")
    assert capfd.readouterr().err == "beta: no answer\n"


def test_full_disk_is_no_error():
    with full_log():
        procfs.log("beta: no answer")
        procfs.log("beta: no answer")
