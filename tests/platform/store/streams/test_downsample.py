"""Smoothing and buckets, compared with simple reference implementations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.store import Store
from lehr.store.streams.series_query import reduce, smooth
from lehr_testing.properties import examples
from lehr_testing.stores import ingest, losses, metrics, new_attempt

QUICK = settings(max_examples=examples(200), deadline=None)


def averaged(values: list[float], weight: float) -> list[float]:
    """Smooth as TensorBoard and W&B do."""
    last, count, smoothed = 0.0, 0, []
    for value in values:
        if not math.isfinite(value):
            smoothed.append(value)
            continue
        last = last * weight + (1 - weight) * value
        count += 1
        smoothed.append(last / (1 - weight**count))
    return smoothed


@given(
    values=st.lists(
        st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf])),
        max_size=700,
    ),
    weight=st.sampled_from([0.0, 0.1, 0.6, 0.9, 0.99, 0.999]),
)
@QUICK
def test_smoothing_is_the_debiased_average(values: list[float], weight: float) -> None:
    found = smooth(np.array(values, np.float64), weight)
    np.testing.assert_allclose(found, averaged(values, weight), rtol=1e-9, atol=1e-6)


def bucketed(
    x: list[float], y: list[float], points: int
) -> tuple[list[int], list[float], list[float]]:
    """Put each point into its bucket, one by one."""
    edges = np.linspace(x[0], x[-1], points + 1).tolist()
    buckets: dict[int, list[int]] = {}
    for place, value in enumerate(x):
        number = sum(value >= edge for edge in edges[1:-1])
        buckets.setdefault(number, []).append(place)
    last, low, high = [], [], []
    for _, places in sorted(buckets.items()):
        real = [y[place] for place in places if not math.isnan(y[place])]
        last.append(places[-1])
        low.append(min(real, default=math.nan))
        high.append(max(real, default=math.nan))
    return last, low, high


@given(
    data=st.lists(
        st.tuples(
            st.floats(-1e9, 1e9),
            st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf])),
        ),
        min_size=1,
        max_size=120,
    ),
    points=st.integers(1, 40),
)
@QUICK
def test_buckets_hold_last_lowest_and_highest(data: list[tuple[float, float]], points: int) -> None:
    x = sorted(pair[0] for pair in data)
    y = [pair[1] for pair in data]
    found = reduce(np.array(x), np.array(y), points)
    last, low, high = bucketed(x, y, points)
    assert found.last.tolist() == last
    np.testing.assert_array_equal(found.low, low)
    np.testing.assert_array_equal(found.high, high)
    assert len(last) <= points


def test_smoothing_is_applied_before_range_and_buckets(store: Store) -> None:
    attempt = new_attempt(store)
    values = [float(step % 17) for step in range(1, 2001)]
    ingest(
        store, attempt.id, *[metrics(step, train_loss=values[step - 1]) for step in range(1, 2001)]
    )
    expected = averaged(values, 0.9)
    series = store.series.read(attempt.run_id, "train/loss", points=40, smoothing=0.9, first=500)
    for place, step in enumerate(series.step):
        assert series.y[place] == pytest.approx(expected[step - 1])
    assert series.low is not None
    inside = expected[499 : series.step[0]]
    assert series.low[0] == pytest.approx(min(inside))


def test_zoom_downsamples_the_range_again(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, *losses(*range(1, 3001)))
    zoomed = store.series.read(attempt.run_id, "train/loss", points=50, first=1000, last=1040)
    assert zoomed.exact
    assert zoomed.step == list(range(1000, 1041))
    near = store.series.read(attempt.run_id, "train/loss", points=50, first=1000, last=1999)
    assert (near.total_points, len(near.step), near.step[-1]) == (1000, 50, 1999)
    none = store.series.read(attempt.run_id, "train/loss", first=5000)
    assert (none.total_points, none.x) == (0, [])
