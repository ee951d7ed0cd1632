"""Machines that lose their power and boot again: each run resumes from its checkpoint, once.

Every process of the machine dies at once and nobody says goodbye; after it the boot id is another
one and pids are handed out from the beginning, so that those on record belong to others.
"""

from __future__ import annotations

import shutil

import pytest

from lehr import home as homes
from lehr.node import procfs
from lehr.node.attempt_dir import AttemptDir
from lehr_testing.fakes import FakeServer
from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.faults.machine import machine
from lehr_testing.faults.networked import nodes_in_use
from lehr_testing.faults.second_node import SecondNode
from lehr_testing.server import marked_processes
from lehr_testing.specs import text_corpus
from lehr_testing.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]
STEPS = 150


@pytest.fixture
def node(tmp_path):
    """(server, second node with a power switch): one GPU each."""
    with machine(tmp_path) as box:
        server = FaultServer(tmp_path / "home", gpus=1, corpus=text_corpus(tmp_path / "corpus"))
        server.up()
        second = SecondNode(server, "n2", gpus=1, machine=box)
        try:
            server.cluster_ready()
            second.start()
            until(lambda: nodes_in_use(server) == 2, within_s=180, what="two nodes that answer")
            yield server, second
        finally:
            second.kill()
            server.down()


def entry_of(server: FakeServer, attempt_id: str) -> AttemptDir:
    [entry] = [entry for entry in server.entries() if entry.attempt_id == attempt_id]
    return entry


def trains_on_the_second(server: FaultServer):
    """Start a run on the second node; another run fills the first node."""
    both = [
        server.submit(server.spec(f"run-{n}", steps=STEPS, step_s=0.2, CHECKPOINT_EVERY=5))
        for n in (1, 2)
    ]
    for run in both:
        until(lambda i=run.id: server.step(f"{i}-1") >= 6, within_s=90, what="both to train")
    placed = {r.id: server.client().run(r.id).detail.placement[0].node for r in both}
    return sorted(both, key=lambda run: placed[run.id] == "n2")


def power_cut(server: FaultServer, second: SecondNode, attempt_id: str) -> int:
    """Return the pid of the shim inside the machine."""
    assert second.machine is not None
    shim = procfs.read_json(entry_of(server, attempt_id).file("shim.json"))
    second.machine.power_off()
    until(lambda: not marked_processes(attempt_id), within_s=20, what="everything to be dead")
    second.kill()
    return int(shim["pid"])


def judged(server: FaultServer, run, *, cause: str) -> None:
    view = server.client().run(run.id)
    assert view.attempt == 2
    moves = [e for e in view.events() if e.kind == "transition"]
    back = [e for e in moves if e.data.get("to") == "queued" and e.data.get("from") != "submitted"]
    assert [e.data.get("cause") for e in back if e.data.get("from") == "running"] == [cause]
    launch = procfs.read_json(str(server.runs / run.id / "attempt-2" / "launch.json"))
    assert launch["resume_from"].startswith("attempt-1/checkpoints/")
    assert list(view.history("train/loss")["step"]) == list(range(1, STEPS + 1))
    server.verdict()


def test_node_rebooted_within_its_lease_reports_it_and_its_run_resumes(node):
    server, second = node
    here, there = trains_on_the_second(server)
    used = power_cut(server, second, f"{there.id}-1")
    second.machine.boot()
    # The recorded pid belongs to another process now, as it may after any boot.
    second.machine.occupy(used)
    second.start()
    assert server.ends(there, here, within_s=240) == ["completed", "completed"]
    assert server.client().run(here.id).attempt == 1
    judged(server, there, cause="node_rebooted")


def test_node_that_returns_after_its_lease_revives_no_attempt(node):
    server, second = node
    here, there = trains_on_the_second(server)
    power_cut(server, second, f"{there.id}-1")
    until(
        lambda: server.client().run(there.id).attempt == 2,
        within_s=200,
        what="the node to be given up, and the run to begin again elsewhere",
    )
    second.machine.boot()
    second.start()
    assert server.ends(there, here, within_s=240) == ["completed", "completed"]
    judged(server, there, cause="node_lost")


def test_run_resumes_after_a_reboot_of_the_only_machine(tmp_path):
    with machine(tmp_path) as box:
        fakes = FakeServer(tmp_path / "home", gpus=1, corpus=text_corpus(tmp_path / "corpus"))
        fakes.inside = box.command
        fakes.up()
        fakes.cluster_ready()
        run = fakes.client().submit(
            fakes.spec("one-machine", steps=STEPS, step_s=0.1, CHECKPOINT_EVERY=5)
        )
        until(lambda: fakes.step(f"{run.id}-1") >= 6, within_s=90, what="it to train")
        box.power_off()
        until(lambda: not marked_processes(f"{run.id}-1"), within_s=20, what="all to be dead")
        shutil.rmtree(homes.ray_dir(fakes.home))  # It is temporary, and boots clear that.
        box.boot()
        box.occupy(fakes.pid)
        fakes.inside = box.command
        fakes.up()
        try:
            fakes.cluster_ready()
            again = fakes.client().run(run.id).wait(timeout_s=200)
            assert (again.state, again.attempt) == ("completed", 2), again.reason
            assert list(again.history("train/loss")["step"]) == list(range(1, STEPS + 1))
            launch = procfs.read_json(str(fakes.runs / run.id / "attempt-2" / "launch.json"))
            assert launch["resume_from"].startswith("attempt-1/checkpoints/")
            assert fakes.violations() == ""
            fakes.nothing_left()
        finally:
            fakes.down()
