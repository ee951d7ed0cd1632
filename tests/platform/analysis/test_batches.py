"""Runs trained on the same data as far as the digests of their batches are equal."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.batches import Agreement, agreement, batches_note, repetition
from lehr.analysis.curve import Curve

digests = st.dictionaries(st.integers(1, 40), st.sampled_from([1.0, 2.0, 3.0]), max_size=30)


def curve(points):
    steps = sorted(points)
    return Curve(steps, [points[step] for step in steps])


@given(one=digests, other=digests)
def test_agreement_matches_its_definition(one, other):
    shared = sorted(one.keys() & other.keys())
    differ = [step for step in shared if one[step] != other[step]]
    found = agreement(curve(one), curve(other))
    assert found == Agreement(len(shared), differ[0] if differ else None)
    assert found == agreement(curve(other), curve(one))
    verdict = "different" if differ else "same" if shared else "unknown"
    assert found.verdict == verdict


def test_a_value_that_is_no_number_is_not_a_difference():
    assert agreement(Curve([1, 2], [math.nan, 5.0]), Curve([1, 2], [4.0, 5.0])).verdict == "same"


@given(values=st.lists(st.integers(0, 5), min_size=1, max_size=40), lasts=st.integers(1, 4))
def test_repetition_matches_its_definition(values, lasts):
    """All steps are of one epoch, so each value that was there before is a repetition."""
    steps = list(range(1, len(values) + 1))
    again = [value in values[:at] for at, value in enumerate(values)]
    ends = [
        at for at in range(len(values)) if at + 1 >= lasts and all(again[at + 1 - lasts : at + 1])
    ]
    found = repetition(
        Curve(steps, list(map(float, values))), Curve(steps, [s / 100 for s in steps]), lasts=lasts
    )
    if not ends:
        assert found is None
        return
    first = ends[0] + 1 - lasts
    last_before = max(at for at in range(first) if values[at] == values[first])
    assert found is not None
    assert (found.step, found.earlier) == (first + 1, last_before + 1)
    assert found.count == sum(again[first:])


def test_the_note_names_who_had_other_batches_and_from_where():
    note = batches_note(
        [("a", Agreement(90)), ("b", Agreement(100, 5)), ("c", Agreement()), ("d", Agreement(80))],
        "base",
    )
    assert note == (
        "the same as base at all 80 compared steps: a, d; other batches than base: b (from step 5 "
        "on); not known, for lack of digests at the same steps: c"
    )
