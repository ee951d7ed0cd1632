"""The checkpoint that a run resumes from, and whether an attempt got any further."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.control.saved_points import (
    Rewound,
    copies_to_remove,
    has_progressed,
    kept_because,
    point_to_resume,
    skipped_through,
)
from lehr_trainer.configs.train import CheckpointConfig


@dataclass(frozen=True)
class Point:
    attempt: int
    step: int
    val_loss: float | None = None
    reason: str = "interval"
    score: float | None = None

    @property
    def path(self) -> str:
        return f"attempt-{self.attempt}/checkpoints/step-{self.step:08}"


@dataclass(frozen=True)
class Odd(Point):
    """The folder that an older version names otherwise."""

    @property
    def path(self) -> str:
        return "elsewhere/last"


@pytest.mark.parametrize(
    ("points", "step"),
    [
        ([Point(1, 5), Point(1, 10)], 10),
        ([Point(1, 10), Point(1, 5)], 10),
        # The second attempt fell back to step 5: what lies after it was damaged.
        ([Point(1, 5), Point(1, 10), Point(2, 7)], 7),
        ([Point(1, 5), Odd(2, 8)], 5),
    ],
)
def test_newest_checkpoint_of_the_newest_attempt_is_resumed(points, step):
    path = point_to_resume(points, "/runs/other/attempt-1/checkpoints/step-00000003")
    assert path is not None
    assert path.endswith(f"step-{step:08}")


BASE = "/runs/other/attempt-7/checkpoints/step-00000003"


@pytest.mark.parametrize(
    ("points", "before", "path", "skips"),
    [
        ([Point(1, 5), Point(1, 10), Point(2, 20), Point(2, 30)], 30, Point(2, 20).path, True),
        # Attempt 2 resumed from step 10: step 15 of the first is of no use to it.
        ([Point(1, 5), Point(1, 10), Point(1, 15), Point(2, 20)], 20, Point(1, 10).path, True),
        ([Point(1, 5), Point(1, 10), Point(2, 20)], 10, Point(1, 5).path, True),
        ([Point(1, 10), Point(2, 20)], 7, BASE, True),
        ([], 7, BASE, True),
        # What was saved since then has the data behind it.
        ([Point(1, 10), Point(2, 20), Point(3, 12)], 20, Point(3, 12).path, False),
    ],
)
def test_rewound_run_resumes_before_the_spike_until_it_has_saved_again(points, before, path, skips):
    rewound = Rewound(attempt=2, before=before, through=35)
    chosen = point_to_resume(points, BASE, rewound, {1: BASE, 2: Point(1, 10).path})
    assert chosen == path
    assert skipped_through(rewound, chosen) == (35 if skips else None)
    assert skipped_through(None, chosen) is None


@pytest.mark.parametrize(
    ("points", "attempt", "progressed"),
    [
        ([], 1, False),
        ([Point(1, 0)], 1, True),
        ([Point(1, 5), Point(2, 5)], 2, False),
        ([Point(1, 5), Point(2, 6)], 2, True),
        ([Point(1, 5), Point(3, 6)], 2, False),
        ([Point(3, 9), Point(2, 6)], 2, True),
    ],
)
def test_attempt_has_progressed_beyond_all_earlier_ones(points, attempt, progressed):
    assert has_progressed(points, attempt) is progressed


points = st.builds(
    Point,
    attempt=st.integers(1, 3),
    step=st.integers(1, 12),
    val_loss=st.none() | st.sampled_from([0.0, 2.0, 3.0, 4.0]),
    score=st.none() | st.sampled_from([0.0, 0.5, 1.0]),
)
policies = st.builds(
    CheckpointConfig,
    keep_last=st.integers(2, 4),
    keep_best=st.booleans() | st.just("task/mean"),
    keep_every=st.integers(0, 5),
)


@settings(deadline=None)
@given(st.lists(points, unique_by=lambda one: (one.attempt, one.step), max_size=9), policies)
def test_copy_is_removed_only_if_no_reason_keeps_it(there, policy):
    gone = copies_to_remove(there, policy, needed=())
    assert set(gone) == {
        one.path for one in there if not kept_because(there, policy)[one.attempt, one.step]
    }
    assert copies_to_remove(there, policy, needed=gone) == []


def test_every_reason_is_named():
    there = [Point(1, 10, 3.0), Point(1, 20, 2.0), Point(1, 30, 4.0), Point(2, 25), Point(2, 35)]
    policy = CheckpointConfig(keep_last=2, keep_best=True, keep_every=20)
    assert [kept_because(there, policy)[one.attempt, one.step] for one in there] == [
        [],
        ["the best", "every 20 steps"],
        [],
        ["one of the last 2"],
        ["one of the last 2"],
    ]


def test_reasons_follow_keep_every_and_keep_best():
    there = [Point(1, step, loss) for step, loss in ((4, 1.0), (6, 3.0), (8, 2.0), (9, 4.0))]
    policy = CheckpointConfig(keep_last=2, keep_best=False, keep_every=3)
    assert copies_to_remove(there, policy, needed=()) == [there[0].path]
