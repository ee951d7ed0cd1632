"""The checkpoint that a run resumes from, and whether an attempt got any further."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lehr.control.saved_points import has_progressed, point_to_resume


@dataclass(frozen=True)
class Point:
    attempt: int
    step: int

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
