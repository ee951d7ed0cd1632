"""SIGTERM to a shim from outside Lehr: how long the training then has to save."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SHIM = """
    import json, os, signal, sys, time
    from lehr.base import procfs
    from lehr.node import subprocesses, torchrun
    from lehr.node.attempt_dir import AttemptDir
    from lehr.node.shim import SIGNALS, Shim

    folder, more = sys.argv[1], json.loads(sys.argv[2])
    if command := more.pop("stopped_by", None):
        AttemptDir(folder).note_command(command)
    torchrun.TERM_GRACE_S, torchrun.SUPERVISOR_S = 0.1, 0.2
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    gang = {"per_node": 1, "nodes": 1, "node_rank": 0}
    launch = {"gang": gang, "attempt_dir": folder, "env": {}, "nonce": folder, **more}
    shim = Shim(AttemptDir(folder), launch)
    # No upload, and nothing to ship: only the training counts here.
    shim.start_shipper = lambda: None
    command = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1], 'w').close(); time.sleep(2)"
    )
    environment = {**os.environ, procfs.MARK: folder}
    argv = [sys.executable, "-c", command, folder + "/ready"]
    shim.trainer = subprocesses.start(argv, environment=environment, folder="/")
    while not os.path.exists(folder + "/ready"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
    shim.wait_for_trainer()
    print(json.dumps([shim.stop_level, shim.stop_reason, shim.outside]))
"""


@pytest.mark.parametrize(
    ("launch", "level", "reason"),
    [
        ({"stop_grace_s": 0.3}, "kill", "it did not end within 0.5 s of SIGTERM"),
        ({"stop_grace_s": 3600.0}, "term", "SIGTERM from outside"),
        ({"stop_grace_s": 3600.0, "stopped_by": "lehr down"}, "term", "lehr down"),
        ({}, "kill", "it did not end within 0.1 s of SIGTERM"),  # Of an earlier server.
    ],
)
def test_program_has_the_grace_of_its_spec(tmp_path: Path, launch, level, reason) -> None:
    done = subprocess.run(
        [sys.executable, "-c", dedent(SHIM), str(tmp_path), json.dumps(launch)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [level, reason, True]
