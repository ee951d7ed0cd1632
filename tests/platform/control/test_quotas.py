"""Quotas of projects: what may start, over random queues, and the reasons of the rest."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.queue import _within_quotas, plan
from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Need, NodeShare
from lehr_testing.properties import examples
from lehr_testing.queue_histories import node


def held(run_id: str, gpus: int, project: str, *, on: str = "n0", first: int = 0) -> Active:
    share = NodeShare(on, tuple(range(first, first + gpus)))
    return Active(run_id, (share,), name=run_id, project=project)


def test_run_beyond_the_quota_waits_with_the_reason_and_others_start():
    waiting = [
        Waiting("a1", 1, Need(2), project="a"),
        Waiting("a2", 2, Need(2), project="a"),
        Waiting("b1", 3, Need(2), project="b"),
    ]
    decided = plan(waiting, [held("a0", 2, "a")], [node("n0", 8)], quotas={"a": 4})
    assert {one.run_id for one in decided.starts} == {"a1", "b1"}
    assert decided.reasons == {"a2": "waits for the quota of project a: it uses 2 of 4 GPUs"}
    assert decided.turn == ()
    assert decided.order == ("a2",)


def test_run_above_the_whole_quota_waits_alone_and_is_told_so():
    waiting = [
        Waiting("huge", 1, Need(8), project="a"),
        Waiting("fits", 2, Need(4), project="a"),
        Waiting("cpu", 3, Need(0), project="none"),
    ]
    decided = plan(waiting, [], [node("n0", 8)], quotas={"a": 4, "none": 0})
    assert [one.run_id for one in decided.starts] == ["fits", "cpu"]
    assert decided.reasons == {
        "huge": "needs 8 GPUs; the quota of project a is 4 GPUs: an admin can raise it by lehr "
        "admin quota set"
    }


def test_runs_beyond_a_quota_reserve_nothing():
    """Otherwise GPUs would idle for a run that may not start."""
    waiting = [Waiting("a1", 1, Need(4), project="a"), Waiting("b1", 2, Need(4), project="b")]
    decided = plan(waiting, [held("a0", 4, "a")], [node("n0", 8)], quotas={"a": 4})
    assert [one.run_id for one in decided.starts] == ["b1"]


@settings(max_examples=examples(300), deadline=None)
@given(
    needs=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 4]), st.sampled_from("abc"), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    running=st.lists(st.tuples(st.integers(1, 4), st.sampled_from("abc")), max_size=3),
    quotas=st.dictionaries(st.sampled_from("abc"), st.integers(0, 8)),
)
def test_random_queues_never_bring_a_project_over_its_quota(needs, running, quotas):
    nodes = [node("n0", 8), node("n1", 8)]
    active, first = [], 0
    for number, (gpus, project) in enumerate(running):
        active.append(held(f"r{number}", gpus, project, first=first))
        first += gpus
        if first > 4:
            break
    waiting = [
        Waiting(f"w{n}", n, Need(gpus), project=project, priority=priority)
        for n, (gpus, project, priority) in enumerate(needs)
    ]
    decided = plan(waiting, active, nodes, quotas=quotas)
    by_id = {run.run_id: run for run in waiting}
    uses = Counter({one.project: 0 for one in active})
    for one in active:
        uses[one.project] += sum(len(share.gpus) for share in one.placement)
    starting: Counter[str] = Counter()
    for one in decided.starts:
        starting[by_id[one.run_id].project] += by_id[one.run_id].need.gpus
    for project, quota in quotas.items():
        assert not starting[project] or uses[project] + starting[project] <= quota
    assert set(decided.reasons) == by_id.keys() - {one.run_id for one in decided.starts}
    # Without what the quotas hold back, the plan is the same: it costs the others nothing.
    allowed, over = _within_quotas(waiting, active, quotas)
    assert plan(allowed, active, nodes).starts == decided.starts
    assert all("quota" in decided.reasons[run_id] for run_id in over)
    # A project without a quota is never held back.
    assert not any(by_id[run_id].project not in quotas for run_id in over)
