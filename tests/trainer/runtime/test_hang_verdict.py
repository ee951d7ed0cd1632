"""Which rank a hang is on, from the collectives that each rank has entered."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict

import pytest

from lehr_trainer.runtime.hang_verdict import Collective, Report, judge

ALL = "0"
CPU = "1"
STEP = ((ALL, "all_reduce", 900), (ALL, "all_reduce", 900), (CPU, "all_reduce", 1))
"""The collectives of a step: two buckets of gradients, and what ranks agree on."""
HOSTS = {0: "n1", 1: "n1", 2: "n2", 3: "n2"}


def report(
    rank: int,
    kinds: Iterable[tuple[str, str, int]],
    groups: dict[str, list[int]] | None = None,
    *,
    ranks: int = 4,
    started: int | None = None,
) -> Report:
    """A rank that has entered these collectives, and started so many of them."""
    counts: dict[str, int] = {}
    entered = []
    for at, (group, operation, size) in enumerate(kinds):
        counts[group] = counts.get(group, 0) + 1
        state = "scheduled" if started is None or at >= started else "started"
        entered.append(Collective(group, counts[group], operation, size, state, at))
    groups = groups or {ALL: [*range(ranks)], CPU: [*range(ranks)]}
    buckets = [(900, "layers.1"), (900, "layers.0")]
    made = Report(rank, HOSTS[rank], 5, f"`f{rank}` (a/b.py:1)", entered, groups, buckets)
    return Report.of(json.loads(json.dumps(asdict(made))))  # As it comes from the store.


def sentence(*reports: Report, silent: dict[int, str] | None = None) -> str:
    hosts = {rank: HOSTS[rank] for rank in {one.rank for one in reports} | (silent or {}).keys()}
    return judge({one.rank: one for one in reports}, hosts, silent or {})


@pytest.mark.parametrize("culprit", range(4))
@pytest.mark.parametrize("done", [0, 1, 2])
def test_rank_that_enters_nothing_more_is_named(culprit: int, done: int) -> None:
    late, others = [*STEP * 3, *STEP[:done]], [*STEP * 3, *STEP[: done + 1]]
    found = sentence(*(report(rank, late if rank == culprit else others) for rank in range(4)))
    what = ("all-reduce 7 (layers.1)", "all-reduce 8 (layers.0)", "all-reduce 4")[done]
    assert found == (
        f"hang at step 6: rank {culprit} on {HOSTS[culprit]} has not entered {what}; its Python "
        f"is in `f{culprit}` (a/b.py:1)"
    )


def test_buckets_are_counted_anew_after_what_is_none() -> None:
    """What the recorder still has may begin in the middle of a step."""
    late = [(ALL, "all_reduce", 900), (ALL, "all_reduce", 5)]
    found = sentence(report(0, late, ranks=2), report(1, [*late, late[0]], ranks=2))
    assert "has not entered all-reduce 3 (layers.1); its" in found


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("skipped", [0, 1])
def test_rank_that_leaves_out_a_collective_is_named(ranks: int, skipped: int) -> None:
    """It goes on in another group than that in which the others wait for it."""
    step = ((ALL, "all_reduce", 900), (CPU, "all_reduce", 1), (ALL, "all_reduce", 5))
    left_out = [*step * 4, *step[:skipped], (step * 2)[skipped + 1]]
    others = [*step * 4, *step[: skipped + 1]]
    for culprit in range(ranks):
        found = sentence(
            *(report(r, left_out if r == culprit else others, ranks=ranks) for r in range(ranks))
        )
        assert f": rank {culprit} on " in found, found
        assert "has not entered" in found


def test_ranks_that_each_left_out_something_are_not_blamed_by_chance() -> None:
    one, other = report(0, [(ALL, "all_reduce", 900)], ranks=2), report(1, STEP[2:], ranks=2)
    assert sentence(one, other) == (
        "hang at step 6: one of the ranks has left out a collective: rank 0 is in all-reduce 1 "
        "(layers.1) and rank 1 is in all-reduce 1"
    )


def test_rank_that_waits_for_another_is_no_culprit() -> None:
    """As with HSDP: rank 2 waits for rank 0, and that for rank 1, in groups of two."""
    groups = {"a": [0, 1], "b": [2, 3], "c": [0, 2], "d": [1, 3]}
    of = {rank: {n: r for n, r in groups.items() if rank in r} for rank in range(4)}
    entered = {0: "ac", 1: "d", 2: "bccb", 3: "bddb"}
    entered = {0: "aca", 1: "ad", 2: "bcbc", 3: "bdb"}
    found = sentence(*(report(r, [(g, "x", 1) for g in entered[r]], of[r]) for r in range(4)))
    assert ": rank 1 on n1 has not entered x 2; its" in found


def test_rank_whose_gpu_has_not_started_what_others_have_is_named() -> None:
    done = [report(rank, STEP, started=2 if rank == 3 else 3) for rank in range(4)]
    assert ": rank 3 on n2 has not started, on its GPU, all-reduce 1; its" in sentence(*done)


def test_nobody_is_named_where_nobody_waits() -> None:
    assert sentence(*(report(rank, STEP, ranks=2) for rank in range(2))) == (
        "hang at step 6: all ranks have entered all-reduce 1, and none waits for another, in "
        "`f0` (a/b.py:1) and `f1` (a/b.py:1)"
    )


def test_ranks_that_do_not_answer_are_named_with_what_is_known() -> None:
    silent = {2: "its process is stopped", 3: "its process is stopped"}
    assert sentence(report(0, STEP[:1]), report(1, STEP[:1]), silent=silent) == (
        "hang at step 6: ranks 2, 3 on n2 cannot answer: its process is stopped; rank 0 is in "
        "all-reduce 1 (layers.1)"
    )
    apart = sentence(report(0, ()), report(3, ()), silent={1: "a", 2: "b"})
    assert "ranks 1 (n1), 2 (n2) cannot answer: a or b; rank 0 is in no collective" in apart
