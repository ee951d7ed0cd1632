"""The points at which fault tests end a process: off by default, effective once when armed, each with a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import lehr
from lehr.base import killpoints
from lehr.control.lifecycle import Desired, RunState
from lehr_testing.faults import kill_points

PROGRAM = """
from lehr.base.killpoints import reached
for step in range(5):
    print(step, flush=True)
    reached("between")
    reached("here")
"""


def steps_of(file: Path | None) -> list[str]:
    environment = {k: v for k, v in os.environ.items() if k != killpoints.VARIABLE}
    if file is not None:
        environment[killpoints.VARIABLE] = str(file)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()


def test_process_dies_at_the_armed_point_and_its_successor_passes_it(tmp_path):
    file = tmp_path / "kill"
    file.write_text("here")
    assert steps_of(file) == ["0"]
    assert (tmp_path / "kill.fired").read_text() == "here"
    assert steps_of(file) == ["0", "1", "2", "3", "4"]


NOT_OF_THE_LIFE_CYCLE = {
    "order_checkpoint",
    "add_checkpoint",
    "remove_checkpoint",
    "add_node_note",  # The next server decides it again from the record.
    "set_node_until",  # One row, which the next server reads.
    "rebuild",  # One transaction of a command, into a file that begins anew.
    "add_rows",  # Opening the file again completes it.
    "restore_checkpoint",  # The same: it is laid out again, and recorded if it was not.
    "begin_external",  # Its sender repeats it with the same id; test_external_runs.py kills a server.
    "transition to external",  # No run moves there: it begins so.
    "request to prune",  # Pruning is a write of its own, prune_run.
}


def test_every_point_in_the_code_has_a_fault_test():
    source = "\n".join(
        path.read_text()
        for path in Path(lehr.__file__).parent.rglob("*.py")
        if path.name != "killpoints.py"
    )
    points = set(re.findall(r'reached\(\s*"([^"]+)"', source))
    for op in ("start", "stop"):
        points |= {f"bridge: {when} a {op} request" for when in ("before", "after")}
        points.add(f"bridge: after a {op} is answered")
    writes = set(re.findall(r'what="([^"]+)"', source))
    prefixes = set(re.findall(r'what=f"([a-z ]+) \{', source))
    assert prefixes == {"update of", "request to", "transition to"}
    # begin_attempt alone moves to starting; the trainer's first record moves to running.
    writes |= {
        f"transition to {s.value}"
        for s in RunState
        if s not in {RunState.STARTING, RunState.RUNNING}
    }
    writes |= {f"request to {desired.value}" for desired in Desired}
    writes |= {"update of dispatched_at", "update of exit"}
    points |= set(kill_points.around(*(writes - NOT_OF_THE_LIFE_CYCLE)))
    at_nodes = {*kill_points.FETCHING, *kill_points.BUILDING}
    assert points == {point for _, point in kill_points.POINTS} | at_nodes
