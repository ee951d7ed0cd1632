"""Runs trained on the same data as far as the digests of their batches are equal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.batches import Agreement, HeldOut, agreement, batches_note, repetition
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


NAMES = {"r1": "docs", "r2": "few-tokens", "r3": "old"}


@pytest.mark.parametrize(
    ("digests", "verdict"),
    [
        ({}, "same"),
        ({"r1": "a"}, "same"),
        ({"r1": None}, "same"),
        ({"r1": "a", "r2": "a"}, "same"),
        ({"r1": "a", "r2": "b"}, "different"),
        ({"r1": "a", "r2": None}, "unknown"),
        ({"r1": None, "r2": None}, "unknown"),
        ({"r1": "a", "r2": "b", "r3": None}, "different"),
    ],
)
def test_sets_are_equal_only_if_every_digest_is_known_and_equal(digests, verdict):
    assert HeldOut.of(digests).verdict == verdict


@given(st.dictionaries(st.text("xyz", min_size=1), st.sampled_from(["a", "b", None]), max_size=6))
def test_note_is_given_only_if_the_sets_are_not_equal(digests):
    found = HeldOut.of(digests)
    assert (found.note("val/loss", {}) is None) == (found.verdict == "same")
    known = {digest for digest in digests.values() if digest is not None}
    assert (found.verdict == "different") == (len(known) > 1)


def test_the_note_names_the_metric_the_sets_and_their_runs():
    found = HeldOut.of({"r1": "6705cb68ff", "r2": "6dc6003912", "r3": None})
    assert found.note("val/loss", NAMES) == (
        "val/loss cannot be compared: these runs were evaluated on 2 different held-out sets "
        "(6705cb68: docs; 6dc60039: few-tokens). The set is not known for old."
    )
    found = HeldOut.of({"r1": "6705cb68ff", "r3": None})
    note = found.note("val/loss", NAMES)
    assert note.startswith("val/loss may not be comparable: old recorded no digest")
    assert not found.differ("r1", "r3")
    assert HeldOut.of({"r1": "a", "r2": "b"}).differ("r2", "r1")
