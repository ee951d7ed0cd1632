"""The points of a run over its attempts: a resumed attempt supersedes later points."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr.store import Store
from lehr.store.streams.points import AttemptStart, Span, lineage
from lehr_testing.properties import examples
from lehr_testing.stores import (
    begin,
    drawn,
    fresh_store,
    ingest,
    line,
    losses,
    memory_folder,
    new_attempt,
    next_attempt,
    run_spec,
)


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
