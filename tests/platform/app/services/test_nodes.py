"""The history of the cluster: what the server saw, and which attempts held GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lehr.app.services.nodes import see_cluster, show_history
from lehr.control.lifecycle import RunState
from lehr_testing.seeding import run_spec
from lehr_testing.stores import begin


@pytest.fixture
def clock(context, monkeypatch):
    """The clock of the store: a list of one time."""
    now = [1_000_000.0]
    parts = vars(context.store).values()
    for part in (context.store, *(one for one in parts if hasattr(one, "_clock"))):
        monkeypatch.setattr(part, "clock" if part is context.store else "_clock", lambda: now[0])
    return now


def look(context, clock, times=1):
    for _ in range(times):
        see_cluster(context)
        clock[0] += 30.0


def test_what_has_not_changed_is_one_span_and_a_pause_of_the_server_is_a_gap(context, clock):
    look(context, clock, 4)
    context.dispatcher.exclude_node("n1", "its fans")
    look(context, clock, 2)
    clock[0] += 3600.0
    look(context, clock, 3)
    [node] = show_history(context, 24).nodes
    start = 1_000_000.0
    assert [(one.kind, one.began - start, one.ended - start) for one in node.spans] == [
        ("in use", 0.0, 120.0),
        ("not given out", 120.0, 150.0),
        # The last look was 30 s ago: so it is now.
        ("not given out", 3780.0, 3870.0),
    ]
    assert node.spans[1].why == "excluded: its fans"
    assert node.gpus == 8
    [shorter] = show_history(context, 60 / 3600).nodes
    assert [(one.began - start, one.ended - start) for one in shorter.spans] == [(3810.0, 3870.0)]


def test_history_names_the_first_queued_run_that_needs_gpus_and_why_it_waits(context, clock):
    look(context, clock)
    run = context.store.runs.create(run_spec("big", gpus=8, project="lr"), actor="ada")
    first, other = SimpleNamespace(run_id=run.id, gpus=8), SimpleNamespace(run_id="cpu", gpus=0)
    context.dispatcher.waiting = [other, first]
    look(context, clock)
    context.store.runs.set_pending_reasons({run.id: "waits for 8 GPUs (all 8 are busy); next"})
    look(context, clock)
    queue = show_history(context, 24).queue
    assert [(one.kind, one.why) for one in queue] == [
        ("nothing queued", ""),
        ("was submitted just now", "big was submitted just now"),
        ("waits for 8 GPUs", "big waits for 8 GPUs (all 8 are busy); next"),
    ]
    assert [(one.project, one.person) for one in queue] == [(None, None), *2 * [("lr", "ada")]]


def test_attempts_hold_their_gpus_from_their_placement_to_their_exit(context, clock):
    store = context.store
    first, second, old = (store.runs.create(run_spec(name)) for name in ("a", "b", "old"))
    store.attempts.update(begin(store, old.id).id, exited_at=clock[0] + 1)
    clock[0] += 90_000.0
    placement = [{"node": "n1", "gpus": [2, 3]}, {"node": "n2", "gpus": [0, 1]}]
    attempt = begin(store, first.id, placement=placement)
    clock[0] += 60.0
    moved = {"old": RunState.STARTING, "new": RunState.RUNNING, "cause": "started"}
    store.transitions.apply(first.id, attempt=1, actor="trainer", **moved)
    clock[0] += 600.0
    store.attempts.update(attempt.id, exited_at=clock[0])
    begin(store, second.id)
    clock[0] += 40.0
    one, two = show_history(context, 24).nodes
    assert (one.name, two.name, one.gpus, two.gpus) == ("n1", "n2", 4, 2)
    held = sorted((run.name, run.gpus, run.trains_at, run.ended) for run in one.runs)
    start = 1_090_000.0
    assert held == [("a", [2, 3], start + 60, start + 660), ("b", [0], None, None)]
    assert [run.gpus for run in two.runs] == [[0, 1]]
