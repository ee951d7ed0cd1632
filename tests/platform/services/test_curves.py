"""The curves of many runs: their order, their begins, and what is refused."""

from __future__ import annotations

import pytest

from lehr.errors import NotFound, UserError
from lehr.services.context import Context
from lehr.services.many_runs import curves_of_runs
from lehr_testing import seeding


@pytest.fixture
def two(context: Context) -> list[str]:
    runs = [context.store.runs.create(seeding.run_spec(name)) for name in ("short", "long")]
    for run, steps in zip(runs, (5, 40), strict=True):
        seeding.start(context.store, run).train(range(1, steps + 1))
    return [run.id for run in runs]


def test_one_begin_counts_for_all_runs_or_each_has_its_own(context: Context, two: list[str]):
    def steps(*firsts: float) -> list[list[int]]:
        found = curves_of_runs(context.store, two, ["train/loss"], firsts=firsts)
        return [one.step for one in found]

    assert steps(4) == [[4, 5], list(range(4, 41))]
    assert steps(4, 39) == [[4, 5], [39, 40]]
    assert steps() == [list(range(1, 6)), list(range(1, 41))]


def test_curves_come_by_run_and_metric_and_missing_metrics_are_left_out(
    context: Context, two: list[str]
):
    found = curves_of_runs(context.store, two[::-1], ["train/lr", "no/such", "train/loss"])
    assert [(one.run_id, one.name) for one in found] == [
        (run, name) for run in two[::-1] for name in ("train/lr", "train/loss")
    ]


def test_begins_that_match_no_runs_and_unknown_runs_are_refused(context: Context, two: list[str]):
    with pytest.raises(UserError, match="2 values for 3 runs"):
        curves_of_runs(context.store, [*two, two[0]], ["train/loss"], firsts=[1, 2])
    with pytest.raises(NotFound, match="nosuch"):
        curves_of_runs(context.store, [two[0], "nosuch"], ["train/loss"])
