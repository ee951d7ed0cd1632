"""Idle GPU-hours: of which GPUs, for which reason, of whom."""

from __future__ import annotations

import pytest

from lehr.analysis.idle_gpus import cluster_history
from lehr.schemas.cluster import NodeHistory, RunSpan, SeenSpan, UnusedSpan

HOUR = 3600.0
MONDAY = 4 * 86_400.0 + 100 * 7 * 86_400.0
"""Midnight, in UTC."""


def seen(began: float, ended: float, kind: str = "in use", **about: object) -> SeenSpan:
    return SeenSpan(began=began * HOUR, ended=ended * HOUR, kind=kind, gpus=4, **about)


def run(began: float, ended: float | None, gpus: int, trains: float | None) -> RunSpan:
    who = {"run_id": "r1", "name": "r1", "project": "lr", "person": "ada", "state": "running"}
    began, ended, trains = (None if at is None else at * HOUR for at in (began, ended, trains))
    return RunSpan(**who, gpus=[*range(gpus)], began=began, trains_at=trains, ended=ended)


def hours(nodes, queue, now=10.0, began=0.0, by="all"):
    history = cluster_history(nodes, queue, began * HOUR, now * HOUR)
    sums = {(one.name, one.kind): one.gpu_hours for one in history.idle if one.by == by}
    return pytest.approx(sums), history.gpu_hours


def test_idle_gpus_have_the_reason_of_the_node_else_of_the_queue_at_that_time():
    spans = [seen(0, 4), seen(4, 5, "down"), seen(5, 6, "not given out"), seen(7, 10)]
    node = NodeHistory(name="n1", gpus=4, spans=spans, runs=[run(1, 3, 3, 1)])
    first = seen(2, 10, "waits for 8 GPUs", project="big", person="bob")
    queue = [seen(0, 2, "nothing queued"), first]
    # Between 6 and 7 no server looked: nothing is counted.
    kinds = {"nothing queued": 4 + 1, "waits for 8 GPUs": 17, "down": 4, "not given out": 4}
    expected = {("", kind): sum_ for kind, sum_ in kinds.items()}
    assert hours([node], queue) == (expected, 4 * (4 + 1 + 3))
    assert hours([node], queue, by="person")[0] == {("bob", "waits for 8 GPUs"): 1 + 4 + 3 * 4}
    assert hours([node], queue, by="project")[0] == {("big", "waits for 8 GPUs"): 17}


@pytest.mark.parametrize(
    ("held", "starting"),
    [
        (run(1, 3, 2, 1.5), 1),
        (run(1, 3, 2, None), 3),
        (run(8, None, 2, None), 3),
        (run(-5, None, 2, -4), 0),
        (run(-5, None, 2, 1), 2),
    ],
)
def test_held_gpus_are_idle_until_training_begins_and_are_of_the_run(held, starting):
    # As its other hours: only while the server saw the node.
    spans = [seen(0, 2.5), seen(2.5, 3, "down"), seen(8.5, 10)]
    node = NodeHistory(name="n1", gpus=4, spans=spans, runs=[held])
    expected = {("ada", "starting"): starting} if starting else {}
    assert hours([node], [], by="person")[0] == expected


def test_a_gpu_that_is_hardly_used_is_idle_only_while_a_run_trains_on_it():
    unused = [UnusedSpan(gpu=gpu, began=0, ended=6 * HOUR) for gpu in (0, 2)]
    node = NodeHistory(name="n1", gpus=4, runs=[run(2, 5, 2, 3)], unused=unused)
    assert hours([node], [], by="person")[0] == {("ada", "held by r1, under 5 % used"): 2}


def test_sums_are_by_node_and_by_week_which_begins_on_monday_in_utc():
    monday = MONDAY / HOUR
    nodes = [
        NodeHistory(name=name, gpus=4, spans=[seen(monday - 2, monday + 3)], runs=[])
        for name in ("n1", "n2")
    ]
    queue = [seen(monday - 2, monday + 3, "nothing queued")]
    at = {"began": monday - 2, "now": monday + 3}
    assert hours(nodes, queue, **at, by="week")[0] == {
        ("1971-W48", "nothing queued"): 2 * 4 * 2,
        ("1971-W49", "nothing queued"): 2 * 4 * 3,
    }
    assert hours(nodes, queue, **at, by="node")[0] == {
        (name, "nothing queued"): 20 for name in ("n1", "n2")
    }


def test_what_lasts_longer_than_the_answer_is_cut_at_its_time():
    node = NodeHistory(name="n1", gpus=4, spans=[seen(0, 11)], runs=[run(9, None, 4, 9)])
    assert hours([node], [seen(0, 11, "nothing queued")]) == ({("", "nothing queued"): 36}, 40)
