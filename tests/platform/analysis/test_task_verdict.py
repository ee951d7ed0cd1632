"""A sweep says when tasks and loss prefer different points, beyond noise."""

from __future__ import annotations

import pytest

from lehr.analysis.task_verdict import disagreement


def test_disagreement_is_a_sentence_with_both_values_and_the_noise() -> None:
    assert disagreement(
        {"lr 1e-3": ([2.0], [0.20], [0.03]), "lr 3e-3": ([2.1], [0.32], [0.04])}
    ) == (
        "Tasks and loss disagree: task/mean is best at lr 3e-3, 0.320 against 0.200 (standard "
        "error of the difference 0.050) at lr 1e-3, which val/loss prefers by 0.1."
    )
    assert disagreement({}) is None


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
    errors = [[0.035] * len(one) for one in losses]
    points = dict(zip("ab", zip(losses, tasks, errors, strict=True), strict=True))
    assert disagreement(points) is None, why
