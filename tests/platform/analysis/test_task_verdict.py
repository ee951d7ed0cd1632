"""A sweep says when tasks and loss prefer different points, beyond noise."""

from __future__ import annotations

import pytest

from lehr.analysis.task_verdict import ScoredPoint, disagreement


def point(rate: float, losses: list[float], tasks: list[float], stderr: float) -> ScoredPoint:
    return ScoredPoint({"train.optimizer.lr": rate}, losses, tasks, [stderr] * len(tasks))


def test_disagreement_is_a_sentence_with_both_values_and_the_noise() -> None:
    low = point(1e-3, [2.0], [0.20], 0.03)
    high = point(3e-3, [2.1], [0.32], 0.04)
    assert disagreement([low, high]) == (
        "Tasks and loss disagree: task/mean is best at lr 3.0e-3, 0.320 against 0.200 (standard "
        "error of the difference 0.050) at lr 1.0e-3, which val/loss prefers by 0.1."
    )
    assert disagreement([high]) is None


@pytest.mark.parametrize(
    ("losses", "tasks", "why"),
    [
        ([[2.0], [2.1]], [[0.32], [0.20]], "both prefer the first"),
        ([[2.0], [2.1]], [[0.20], [0.29]], "within the noise of the items"),
        ([[2.0, 2.2], [2.08, 2.14]], [[0.2, 0.2], [0.4, 0.4]], "losses within seeds' noise"),
        ([[2.0, 2.0], [2.1, 2.1]], [[0.1, 0.3], [0.35, 0.35]], "tasks within seeds' noise"),
    ],
)
def test_no_disagreement_within_noise(
    losses: list[list[float]], tasks: list[list[float]], why: str
) -> None:
    points = [
        point(rate, ours, theirs, 0.035)
        for rate, ours, theirs in zip((1e-3, 3e-3), losses, tasks, strict=True)
    ]
    assert disagreement(points) is None, why
