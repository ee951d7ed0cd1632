"""Groups of runs: which runs are in no mean, because they end far worse than the others."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lehr.analysis.groups import SeededRun, far_runs, gaps, grouped, means


@pytest.mark.parametrize(
    ("values", "goal", "far"),
    [
        ([1.0, 1.1, 0.9, 3.2, 3.1], "minimize", [3, 4]),  # 20 times 0.1.
        ([1.0, 1.1, 0.9, 2.9, math.nan, None], "minimize", []),
        ([3.0, 3.0, 3.0, 4.1], "minimize", []),  # Equal ones are of 2 % at least.
        ([3.0, 3.0, 3.0, 4.3], "minimize", [3]),
        ([3.0, 3.0, 4.3], "minimize", []),
        ([0.9, 0.9, 0.9, 0.1], "maximize", [3]),
        ([0.9, 0.9, 0.9, 9.0], "maximize", []),
        ([3.0, 3.0, 3.0, 4.3], None, []),
    ],
)
def test_runs_that_end_far_worse_than_the_others_are_far(values, goal, far):
    assert sorted(far_runs(dict(enumerate(values)), goal)) == far


def far_one_by_one(values, goal):
    """The rule as it is written: each run against all others, the worst first."""
    sign = {"minimize": 1, "maximize": -1}[goal]
    far = []
    for run in sorted(values, key=lambda run: -sign * values[run]):
        others = [value for other, value in values.items() if other != run]
        if len(others) < 3:
            break
        middle = statistics.median(others)
        usual = statistics.median(abs(value - middle) for value in others)
        if sign * (values[run] - middle) <= 20 * max(usual, 0.02 * abs(middle)):
            break
        far.append(run)
    return far


CLOSE_AND_FAR = some.sampled_from([0.0, 3.0, 3.1, 3.2, 4.3, 9.0, 1e3]) | some.floats(-1e3, 1e3)


@given(some.lists(CLOSE_AND_FAR, max_size=12), some.sampled_from(["minimize", "maximize"]))
def test_far_runs_are_those_of_the_rule_run_by_run(values, goal):
    runs = dict(enumerate(values))
    assert far_runs(runs, goal) == far_one_by_one(runs, goal)


def test_a_far_seed_is_in_no_mean_of_seeds_and_is_named():
    """3, 3.1 and 3.2 of four: 3.1, which is 0.4 below 3.5."""
    values = (3.0, 3.1, 3.2, 1000.0)
    members = [SeededRun(f"r{seed}", f"a-{seed}", "a", seed, v) for seed, v in enumerate(values)]
    members.append(SeededRun("b", "b", "b", 0, 3.5))
    groups = grouped(members, "minimize")
    assert (groups[0].group.mean, groups[0].run_ids) == (pytest.approx(3.1), ["r0", "r1", "r2"])
    [gap] = gaps(groups, None, "val/loss", "minimize")
    assert gap.difference == pytest.approx(0.4)
    for sentence in (gap.sentence, *means(groups, "val/loss")):
        assert sentence.endswith(". Without a-3, far off.")
    assert grouped(members, None)[0].group.mean == pytest.approx(1009.3 / 4), "of a speed"
