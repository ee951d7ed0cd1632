"""Series: the result is compared with simple reference implementations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr.errors import NotFound, UserError
from lehr.presenters.streams import series_view
from lehr.store import Store
from lehr.store.streams.downsample import reduce, smooth
from lehr.store.streams.points import AttemptStart, Span, lineage
from lehr_testing.properties import examples
from lehr_testing.stores import (
    begin,
    fresh_store,
    ingest,
    line,
    memory_folder,
    metrics,
    new_attempt,
    next_attempt,
    run_spec,
)

QUICK = settings(max_examples=examples(200), deadline=None)


def losses(*steps: int, of: int = 0) -> list[bytes]:
    """Return losses at these steps, whose values identify the attempt ``of``."""
    return [metrics(step, time=1000.0 * of + step, train_loss=of + step / 1000) for step in steps]


def drawn(store: Store, run_id: str, **options: object) -> dict[int, float]:
    series = store.series.read(run_id, "train/loss", exact=True, **options)  # type: ignore[arg-type]
    return dict(zip(series.step, series.y, strict=True))


# ------------------------------------------------------------------------------- smoothing


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


def test_smoothing_a_constant_changes_nothing() -> None:
    np.testing.assert_allclose(smooth(np.full(5000, 3.25), 0.99), 3.25, rtol=1e-12)


# --------------------------------------------------------------------------------- buckets


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


def test_downsampled_series_keeps_every_extreme(store: Store) -> None:
    attempt = new_attempt(store)
    values = {step: math.sin(step / 40) for step in range(1, 3001)} | {1234: 99.0, 2222: -99.0}
    ingest(store, attempt.id, *[metrics(step, train_loss=value) for step, value in values.items()])
    series = store.series.read(attempt.run_id, "train/loss", points=50)
    assert (series.exact, series.total_points, len(series.x)) == (False, 3000, 50)
    assert series.low is not None
    assert series.high is not None
    assert (min(series.low), max(series.high)) == (-99.0, 99.0)
    assert series.step[-1] == 3000
    assert series.y == [values[step] for step in series.step]


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


def test_nan_and_infinity_are_stored_and_shown(store: Store) -> None:
    attempt = new_attempt(store)
    values: list[object] = [5.0] * 1000
    values[300], values[600], values[999] = "NaN", "Infinity", "-Infinity"
    ingest(store, attempt.id, *[metrics(n + 1, train_loss=value) for n, value in enumerate(values)])
    exact = store.series.read(attempt.run_id, "train/loss", exact=True)
    assert math.isnan(exact.y[300])
    assert (exact.y[600], exact.y[999]) == (math.inf, -math.inf)
    drawn = store.series.read(attempt.run_id, "train/loss", points=10)
    assert drawn.nonfinite == [301, 601, 1000]
    assert drawn.high is not None
    assert max(drawn.high) == math.inf
    assert drawn.y[-1] == -math.inf
    assert store.series.latest([attempt.run_id])[attempt.run_id]["train/loss"].value == -math.inf
    ingest(store, attempt.id, metrics(1001, train_loss="NaN"))
    assert math.isnan(store.series.latest([attempt.run_id])[attempt.run_id]["train/loss"].value)
    assert '"NaN"' in series_view(exact).model_dump_json()


# ------------------------------------------------------------------------------------- axes


def test_the_axes_are_steps_tokens_and_seconds_since_the_first_point(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(
        store,
        attempt.id,
        metrics(1, time=50.0, tokens=10, train_loss=3.0),
        metrics(2, time=50.5, tokens=20, train_loss=2.0),
        line("evaluation", 52.0, step=2, tokens=20, values={"val/loss": 2.5}),
        line("evaluation", 60.0, step=9, tokens=90, values={"val/loss": 2.25}),
    )
    run_id = attempt.run_id
    assert store.series.read(run_id, "train/loss", x_axis="tokens").x == [10.0, 20.0]
    assert store.series.read(run_id, "train/loss", x_axis="time").x == [0.0, 0.5]
    assert store.series.read(run_id, "val/loss", x_axis="time").x == [0.5, 10.0]
    assert store.series.read(run_id, "val/loss", x_axis="tokens", first=50).step == [9]


def test_time_axis_ascends_although_the_clock_goes_back(store: Store) -> None:
    attempt = new_attempt(store)
    times = [10.0, 11.0, 5.0, 6.0, 12.0]
    ingest(
        store,
        attempt.id,
        *[metrics(n, time=at, train_loss=float(n)) for n, at in enumerate(times, start=1)],
    )
    series = store.series.read(attempt.run_id, "train/loss", x_axis="time")
    assert series.x == [-5.0, -4.0, 0.0, 1.0, 2.0]
    assert series.step == [3, 4, 1, 2, 5]


def test_points_without_tokens_are_omitted_from_the_token_axis(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(
        store,
        attempt.id,
        line("metrics", 1.0, step=1, values={"train/loss": 3.0}),
        metrics(2, tokens=20, train_loss=2.0),
    )
    assert store.series.read(attempt.run_id, "train/loss", x_axis="tokens").step == [2]
    assert store.series.read(attempt.run_id, "train/loss").step == [1, 2]


# ------------------------------------------------------------------------------- supersession


def test_resumed_attempt_supersedes_points_after_its_step(store: Store) -> None:
    first = new_attempt(store)
    run_id = first.run_id
    ingest(store, first.id, line("started"), *losses(*range(1, 9)))
    second = next_attempt(store, run_id)
    ingest(store, second.id, line("started"))
    assert list(drawn(store, run_id)) == list(range(1, 9)), "it has nothing to show yet"
    ingest(
        store, second.id, line("resumed", step=5, checkpoint="attempt-1/checkpoints/step-00000005")
    )
    assert list(drawn(store, run_id)) == list(range(1, 6))
    ingest(store, second.id, *losses(6, 7, of=1))
    assert drawn(store, run_id) == {step: step / 1000 for step in range(1, 6)} | {
        6: 1.006,
        7: 1.007,
    }
    series = store.series.read(run_id, "train/loss", with_superseded=True, x_axis="time")
    (old,) = series.superseded
    assert (old.step, old.y) == ([6, 7, 8], [0.006, 0.007, 0.008])
    assert series.x == [0.0, 1.0, 2.0, 3.0, 4.0, 1005.0, 1006.0]


def test_attempt_that_starts_over_supersedes_everything(store: Store) -> None:
    first = new_attempt(store)
    ingest(store, first.id, line("started"), *losses(1, 2, 3))
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("started"), *losses(1, of=1))
    assert drawn(store, first.run_id) == {1: 1.001}
    assert store.series.latest([first.run_id])[first.run_id]["train/loss"].step == 1
    (info,) = store.series.metrics(first.run_id)
    assert (info.points, info.last, info.minimum) == (1, 1.001, 1.001)
    assert store.series.trend([first.run_id]) == {first.run_id: [1.001]}


def test_attempt_without_a_step_supersedes_nothing(store: Store) -> None:
    first = new_attempt(store)
    ingest(store, first.id, line("started"), *losses(*range(1, 9)))
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("started"), line("notice", phase="data", message="no"))
    third = next_attempt(store, first.run_id)
    ingest(
        store,
        third.id,
        line("started"),
        line("resumed", step=5, checkpoint="attempt-1/checkpoints/step-00000005"),
        *losses(6, of=2),
    )
    assert list(drawn(store, first.run_id)) == [1, 2, 3, 4, 5, 6]


def test_curve_follows_the_checkpoints_that_were_resumed(store: Store) -> None:
    """Attempt 2 started over by mistake; attempt 3 resumed from a checkpoint of attempt 1."""
    first = new_attempt(store)
    ingest(store, first.id, line("started"), *losses(*range(1, 9)))
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("started"), *losses(1, 2, of=1))
    third = next_attempt(store, first.run_id)
    ingest(
        store,
        third.id,
        line("resumed", step=5, checkpoint="attempt-1/checkpoints/step-00000005"),
        *losses(6, of=2),
    )
    assert drawn(store, first.run_id) == {step: step / 1000 for step in range(1, 6)} | {6: 2.006}


def test_latest_value_is_the_last_of_the_curve(store: Store) -> None:
    """Evaluated at 4 and 8, resumed from 6: the newest evaluation that counts is the one at 4."""
    first = new_attempt(store)
    ingest(
        store,
        first.id,
        *losses(*range(1, 9)),
        line("evaluation", step=4, tokens=0, values={"val/loss": 2.0}),
        line("evaluation", step=8, tokens=0, values={"val/loss": 1.0}),
    )
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("resumed", step=6, checkpoint="attempt-1/x"), *losses(7, of=1))
    latest = store.series.latest([first.run_id])[first.run_id]
    assert (latest["val/loss"].step, latest["val/loss"].value) == (4, 2.0)
    assert latest["train/loss"].step == 7
    assert list(store.series.latest([first.run_id], ["val/loss"])[first.run_id]) == ["val/loss"]


def test_late_bytes_of_an_older_attempt_do_not_count(store: Store) -> None:
    first = new_attempt(store)
    ingest(store, first.id, *losses(1, 2, 3, 4))
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("resumed", step=2, checkpoint="attempt-1/x"), *losses(3, of=1))
    ingest(store, first.id, *losses(5, 6, 7))
    assert drawn(store, first.run_id) == {1: 0.001, 2: 0.002, 3: 1.003}


@st.composite
def launches(draw: st.DrawFn) -> list[tuple[int | None, list[int]]]:
    """Attempts: the step from which each resumed (None: the start) and its own steps."""
    found: list[tuple[int | None, list[int]]] = []
    reached = 0
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.one_of(st.none(), st.integers(0, reached))) if reached else None
        count = draw(st.integers(0, 8))
        steps = list(range((at or 0) + 1, (at or 0) + 1 + count))
        found.append((at, steps))
        reached = max([reached, *steps])
    return found


def expected_curve(attempts: list[tuple[int | None, list[int]]]) -> dict[int, tuple[int, int]]:
    """Map each step to its attempt: an attempt with points supersedes later points of earlier ones."""
    curve: dict[int, tuple[int, int]] = {}
    for number, (at, steps) in enumerate(attempts, start=1):
        if at is None and not steps:
            continue
        curve = {step: made for step, made in curve.items() if step <= (at or 0)}
        curve |= {step: (number, step) for step in steps}
    return curve


@given(attempts=launches())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_sequence_of_resumes_gives_one_curve(
    shared: Store, attempts: list[tuple[int | None, list[int]]]
) -> None:
    run_id = shared.runs.create(run_spec()).id
    for number, (at, steps) in enumerate(attempts, start=1):
        attempt = begin(shared, run_id) if number == 1 else next_attempt(shared, run_id)
        lines = [line("started")]
        if at is not None:
            lines.append(line("resumed", step=at, checkpoint=""))
        ingest(shared, attempt.id, *lines, *losses(*steps, of=number))
    curve = expected_curve(attempts)
    if not any(steps for _, steps in attempts):
        assert shared.series.metrics(run_id) == []
        return
    assert drawn(shared, run_id) == {step: of + step / 1000 for step, (of, _) in curve.items()}
    latest = shared.series.latest([run_id])[run_id]
    if curve:
        assert latest["train/loss"].step == max(curve)
        assert shared.series.metrics(run_id)[0].points == len(curve)
    else:
        assert latest == {}
    recorded = {(number, step) for number, (_, steps) in enumerate(attempts, 1) for step in steps}
    series = shared.series.read(run_id, "train/loss", exact=True, with_superseded=True)
    shown = set(curve.values())
    old = {(round(y), step) for part in series.superseded for step, y in zip(part.step, part.y)}  # noqa: B905
    assert shown | old == recorded


@pytest.fixture(scope="module")
def shared():
    with memory_folder() as folder, fresh_store(folder / "home") as store:
        yield store


def test_each_attempt_ends_where_a_later_one_resumed() -> None:
    known = [
        AttemptStart(1, 0, None),
        AttemptStart(2, 50, 1),
        AttemptStart(3, 30, 2),
        AttemptStart(4, 40, None),
    ]
    assert lineage(known) == [Span(1, 30), Span(2, 30), Span(3, 40), Span(4, 2**63 - 1)]
    assert lineage([]) == []
    assert lineage([AttemptStart(3, 7, 9)]) == [Span(3, 2**63 - 1)]


# ------------------------------------------------------------------------------------- lists


def test_trend_has_a_few_values_of_each_run(store: Store) -> None:
    long, short = new_attempt(store, "long"), new_attempt(store, "short")
    quiet = store.runs.create(run_spec("quiet"))
    ingest(store, long.id, *losses(*range(1, 1001)))
    ingest(store, short.id, *losses(1, 2))
    trend = store.series.trend([long.run_id, short.run_id, quiet.id])
    assert len(trend[long.run_id]) == 24
    assert trend[long.run_id][-1] == 1.0
    assert trend[short.run_id] == [0.001, 0.002]
    assert trend[quiet.id] == []
    ingest(store, short.id, *losses(3))
    assert store.series.trend([short.run_id]) == {short.run_id: [0.001, 0.002, 0.003]}


def test_unknown_metric_gets_a_suggestion(store: Store) -> None:
    attempt = new_attempt(store)
    with pytest.raises(NotFound, match="has not logged any metric yet"):
        store.series.read(attempt.run_id, "train/loss")
    ingest(store, attempt.id, *losses(1))
    with pytest.raises(NotFound, match="Did you mean train/loss"):
        store.series.read(attempt.run_id, "train/los")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 0}, "points is 0"),
        ({"points": 10**9}, "points is"),
        ({"smoothing": 1.0}, "smoothing is 1.0"),
        ({"smoothing": -0.1}, "smoothing is -0.1"),
        ({"smoothing": math.nan}, "smoothing is nan"),
        ({"x_axis": "epoch"}, "x is 'epoch'"),
        ({"first": math.nan}, "first is not a number"),
    ],
)
def test_invalid_options_are_named(store: Store, options: dict[str, object], message: str) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, *losses(1))
    with pytest.raises(UserError, match=message):
        store.series.read(attempt.run_id, "train/loss", **options)  # type: ignore[arg-type]
