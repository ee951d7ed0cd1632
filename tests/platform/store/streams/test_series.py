"""Series of a metric: its axes, its range, and values that are not finite."""

from __future__ import annotations

import math

import pytest

from lehr.app.presenters.series import series_view
from lehr.errors import NotFound, UserError
from lehr.store import Store
from lehr_testing.stores import ingest, line, losses, metrics, new_attempt


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
    # A later record of an earlier step does not move it in time; one of a new step is placed.
    late = line("evaluation", 99.0, step=1, tokens=10, values={"val/loss": 2.0})
    new = line("evaluation", 98.0, step=4, tokens=40, values={"val/loss": 2.0})
    store.streams.append(
        attempt.id, "events.jsonl", store.streams.sizes(attempt.id)["events.jsonl"], late + new
    )
    assert store.series.read(run_id, "train/loss", x_axis="time").x == [0.0, 0.5]
    assert store.series.read(run_id, "val/loss", x_axis="time").x == [0.0, 0.5, 10.0, 48.0]


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
