"""Student's t, against published tables and closed forms."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lehr.analysis.significance import cumulative, quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 5, 2.571),
        (0.975, 30, 2.042),
        (0.95, 10, 1.812),
        (0.999, 4, 7.173),
        (0.90, 100, 1.290),
    ],
)
def test_quantiles_are_those_of_published_tables(probability, freedom, value):
    assert quantile(probability, freedom) == pytest.approx(value, abs=5e-4)


@given(st.floats(-1e6, 1e6))
@example(1e-8)
def test_one_and_two_degrees_of_freedom_have_closed_forms(t):
    assert cumulative(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-9)
    assert cumulative(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-9)


@given(st.floats(0.5, 0.9999), st.floats(0.7, 1e4))
def test_the_quantile_inverts_the_distribution(probability, freedom):
    found = quantile(probability, freedom)
    assert cumulative(found, freedom) == pytest.approx(probability, abs=1e-8)
    assert cumulative(-found, freedom) == pytest.approx(1 - probability, abs=1e-8)


@pytest.mark.parametrize("wrong", [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_outside_its_range_is_an_error(wrong):
    with pytest.raises(ValueError, match="no quantile"):
        quantile(*wrong)
