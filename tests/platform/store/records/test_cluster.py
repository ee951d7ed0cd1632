"""Notes about nodes: the newest counts, and readmission resets earlier failures."""

from __future__ import annotations

import pytest

from lehr.cluster.exits import ends_on_nodes, excluded, nodes_to_avoid, readmitted
from lehr.control.lifecycle import RunState
from lehr.control.resources import Node
from lehr.control.snapshot import Snapshot
from lehr.control.step import step
from lehr.store import Store
from lehr_testing.groups import Groups
from lehr_testing.stores import run_spec


class Clock:
    at = 1_000.0

    def __call__(self) -> float:
        self.at += 1.0
        return self.at


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path, clock=Clock()) as opened:
        yield opened


def fails(
    store: Store, run: str, node: str, reason: str = "gpu_busy", stopped: str | None = None
) -> None:
    """Let an attempt of a queued run on a node end with that reason; the run is queued again.
    ``stopped``: why it was stopped before.
    """
    attempt = store.transitions.begin_attempt(
        run, placement=[{"node": node, "gpus": [0]}], resume_from=None, token_sha256="0" * 64
    )
    assert attempt is not None
    state = RunState.STARTING
    if stopped is not None:
        store.transitions.apply(
            run,
            old=state,
            new=RunState.STOPPING,
            attempt=attempt.number,
            cause=stopped,
            actor="dispatcher",
        )
        state = RunState.STOPPING
    store.attempts.update(
        attempt.id, exit={"reason": reason, "code": None}, exited_at=store.clock()
    )
    store.transitions.apply(
        run,
        old=state,
        new=RunState.QUEUED,
        attempt=attempt.number,
        cause=reason,
        actor="dispatcher",
    )


def tick(store, *usable: str) -> None:
    """Do what a tick does about these nodes."""
    notes = store.nodes.notes()
    out = excluded(notes)
    ends = [end for one in store.attempts.recently_ended() for end in ends_on_nodes(store, one)]
    snapshot = Snapshot(
        ends=[end for end in ends if end.node not in out],
        readmitted=readmitted(notes),
        places=[Node(name, (), excluded=name in out) for name in usable],
    )
    Groups(store).executor.apply(step(snapshot))


def test_two_consecutive_faults_are_recorded_once_and_survive_a_restart(store):
    run = store.runs.create(run_spec("unlucky")).id
    changes = []
    store.subscribe(changes.append)
    for _ in range(2):
        fails(store, run, "n1")
    tick(store, "n1", "n2")
    why = f"it failed 2 attempts in a row: {run}-1 (gpu_busy), {run}-2 (gpu_busy)"
    assert excluded(store.nodes.notes()) == {"n1": why}
    assert any(change.kind == "cluster" for change in changes)
    tick(store, "n1", "n2")
    [note] = store.nodes.notes().values()
    assert (note.kind, note.actor) == ("excluded", "dispatcher")


def test_readmitted_node_may_run_the_run_that_failed_on_it(store):
    run = store.runs.create(run_spec("unlucky")).id
    for _ in range(2):
        fails(store, run, "n1")
    assert nodes_to_avoid(store, store.runs.get(run)).keys() == {"n1"}
    tick(store, "n1")  # The only node there is: it stays.
    assert excluded(store.nodes.notes()) == {}
    store.nodes.note("n1", "readmitted", "by hand", actor="user")
    assert nodes_to_avoid(store, store.runs.get(run)) == {}
    tick(store, "n1", "n2")
    assert excluded(store.nodes.notes()) == {}
    first = readmitted(store.nodes.notes())["n1"]
    store.nodes.note("n1", "readmitted", "again", actor="user")
    assert readmitted(store.nodes.notes())["n1"] > first


@pytest.mark.parametrize(("stopped", "faulty"), [("node_until", False), ("preempted", True)])
def test_node_that_is_shut_down_at_its_end_is_not_faulty(store, stopped, faulty):
    run = store.runs.create(run_spec("moved")).id
    for reason in ("node_lost", "node_rebooted"):
        fails(store, run, "n1", reason, stopped=stopped)
    tick(store, "n1", "n2")
    assert bool(excluded(store.nodes.notes())) is faulty
    assert bool(nodes_to_avoid(store, store.runs.get(run))) is faulty
    # A fault before or after it counts as ever.
    for _ in range(2):
        fails(store, run, "n1")
    tick(store, "n1", "n2")
    assert "n1" in excluded(store.nodes.notes())
