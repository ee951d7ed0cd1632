"""Runs are compared on the held-out set only if it is the same set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.batches import HeldOut

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


@given(st.permutations(["r1", "r2", "r3"]))
def test_the_verdict_does_not_depend_on_the_order_of_the_runs(order):
    digests = {"r1": "a", "r2": "b", "r3": None}
    found = HeldOut.of({run_id: digests[run_id] for run_id in order})
    assert found.verdict == "different"
    assert found.differ("r1", "r2")
    assert found.differ("r2", "r1")
    assert not found.differ("r1", "r3")
    assert not found.differ("r1", "r1")


def test_the_note_names_the_metric_the_sets_and_their_runs():
    found = HeldOut.of({"r1": "6705cb68ff", "r2": "6dc6003912", "r3": None})
    assert found.note("val/loss", NAMES) == (
        "val/loss cannot be compared: these runs were evaluated on 2 different held-out sets "
        "(6705cb68: docs; 6dc60039: few-tokens). The set is not known for old."
    )
    found = HeldOut.of({"r1": "6705cb68ff", "r3": None})
    note = found.note("val/loss", NAMES)
    assert note is not None
    assert note.startswith("val/loss may not be comparable: old recorded no digest")
