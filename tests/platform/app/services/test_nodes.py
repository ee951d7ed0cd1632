"""The history of the cluster: what the server saw, and which attempts held GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lehr.app.presenters.cluster import ClusterPresenter
from lehr.app.services.nodes import record_minute, see_cluster, show_figures, show_history
from lehr.cluster.membership import Cluster
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound, UserError
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


@pytest.fixture
def reported(context, clock):
    """Let the agent of n1 report its figures, twice in a minute; then record the minute."""
    store, cluster = context.store, Cluster({})
    names = [{"index": gpu, "name": "NVIDIA H100"} for gpu in range(3)]
    node = {"name": "n1", "address": "10.0.0.5", "ray_id": "r", "gpus": 3, "alive": True}
    cluster.set_state("up", None)
    cluster.on_news({"news": "members", "nodes": [node]})
    of_node = {"news": "node", "name": "n1"}
    cluster.on_news({**of_node, "hello": {"gpus": names, "attempts": {}}})
    context.dispatcher.cluster = cluster
    context.cluster_views = ClusterPresenter(store, cluster, tuple, embedded=False)

    def report(*looks, cpu=0.5):
        for uses in looks:
            now = [
                {"index": gpu, "utilization": use, "power_watts": 100 + gpu} for gpu, use in uses
            ]
            host = {"cpu_utilization": cpu, "ram_used_bytes": 2e9}
            cluster.on_news({**of_node, "attempts": {}, "gpus_now": now, "host_now": host})
        record_minute(context)
        clock[0] += 60.0

    return report


def test_figures_are_means_of_minutes_and_nothing_where_none_were_reported(
    context, clock, reported
):
    start = clock[0]
    reported([(0, 0.9), (1, None)], [(0, 0.5), (1, None)])
    reported([(0, 0.3)], cpu=0.1)
    clock[0] += 120.0
    reported([(0, 0.2)], cpu=0.1)
    reported()
    clock[0] -= 60.0
    found = show_figures(context, "n1", start - 60.0)
    assert (found.began, found.part_s) == (start - 60.0, 120.0)
    assert found.figures == {
        "system/cpu_utilization": [0.3, None, 0.1],
        "system/ram_used_bytes": [2e9, None, 2e9],
        "system/gpu0_utilization": [0.5, None, 0.2],
        "system/gpu0_power_watts": [100, None, 100],
        "system/gpu1_power_watts": [101, None, None],
    }
    # A day has means of longer parts; what is older than seven days is neither shown nor kept.
    day = show_figures(context, "n1", None)
    uses = day.figures["system/gpu0_utilization"]
    assert (len(uses), day.part_s) == (300, 288.0)
    assert [use for use in uses if use is not None] == [0.7, 0.25]
    clock[0] += 8 * 86_400.0
    reported([(0, 0.3)])
    kept = context.store.node_minutes.parts("n1", start - 120.0, 86_400.0)
    assert {part for _, part, *_ in kept} == {8}
    with pytest.raises(NotFound, match="no node 'n2'"):
        show_figures(context, "n2", None)
    with pytest.raises(UserError, match=r"since is .* it must be before now"):
        show_figures(context, "n1", clock[0])


def test_held_gpus_count_as_idle_while_the_mean_of_a_minute_is_below_five_percent(
    context, clock, reported
):
    store = context.store
    run = store.runs.create(run_spec("tiny", gpus=2, project="lr"), actor="ada")
    begin(store, run.id, placement=[{"node": "n1", "gpus": [0, 1]}])
    moved = {"old": RunState.STARTING, "new": RunState.RUNNING, "cause": "started"}
    store.transitions.apply(run.id, attempt=1, actor="trainer", **moved)
    clock[0] += 60.0
    # A mean of 0.05 is no longer below. GPU 2 is free, and of GPU 1 nothing is known at first.
    reported([(0, 0.02), (1, None), (2, 0.0)], [(0, 0.06), (1, None), (2, 0.0)])
    reported([(0, 0.04), (1, 0.0), (2, 0.0)])
    reported([(0, 0.05), (1, 0.0), (2, 0.0)])
    clock[0] += 60.0
    history = show_history(context, 24)
    [node] = history.nodes
    start = 1_000_000.0
    assert [(one.gpu, one.began - start, one.ended - start) for one in node.unused] == [
        (0, 0.0, 120.0),
        (1, 60.0, 180.0),
    ]
    idle = {one.by: (one.name, one.kind, one.gpu_hours) for one in history.idle}
    names = {"all": "", "node": "n1", "project": "lr", "person": "ada", "week": "1970-W03"}
    why = "held by tiny, under 5 % used"
    assert idle == {by: (name, why, pytest.approx(4 / 60)) for by, name in names.items()}
