"""The pooled standard deviation, against NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from lehr.analysis.noise import pooled_noise


def test_deviation_of_one_group_is_its_sample_deviation():
    assert pooled_noise([[1.0, 2.0, 4.0]]).deviation == pytest.approx(
        np.std([1.0, 2.0, 4.0], ddof=1)
    )


def test_groups_are_weighted_by_their_degrees_of_freedom():
    first, second = [1.0, 2.0, 4.0], [7.0, 7.5]
    pooled = (2 * np.var(first, ddof=1) + np.var(second, ddof=1)) / 3
    assert pooled_noise([first, second, [99.0], []]).deviation == pytest.approx(np.sqrt(pooled))


@pytest.mark.parametrize("groups", [[], [[]], [[1.0], [5.0]]])
def test_deviation_is_none_without_two_values_in_a_group(groups):
    assert pooled_noise(groups) is None
