"""Machines that lose their power and boot again: each run resumes from its checkpoint, once.

Every process of the machine dies at once and nobody says goodbye; after it the boot id is another
one and pids are handed out from the beginning, so that those on record belong to others.
"""

from __future__ import annotations

import shutil

import pytest

from lehr.base import home as homes
from lehr.base import procfs
from lehr_testing.fakes import FakeServer
from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.faults.machine import machine
from lehr_testing.faults.second_node import SecondNode, nodes_in_use
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
