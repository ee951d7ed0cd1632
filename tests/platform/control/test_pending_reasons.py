"""The wording of pending reasons: durations, singular and plural."""

import pytest

from lehr.control.pending_reasons import about, cpu_places, no_usable_node, waits
from lehr.control.resources import Need


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "less than 1 m"),
        (59, "less than 1 m"),
        (60, "about 1 m"),
        (8 * 60, "about 10 m"),
        (55 * 60, "about 50 m"),
        (56 * 60, "about 1 h"),
        (10 * 3600, "about 10 h"),
        (47.9 * 3600, "about 48 h"),
        (48 * 3600, "about 2 d"),
        (75 * 3600, "about 3 d"),
    ],
)
def test_duration_is_rounded_to_its_precision(seconds, text):
    assert about(seconds) == text


def test_singular_and_plural_are_used_correctly():
    assert cpu_places(1) == "waits for a node's CPU (the only place is taken)"
    assert cpu_places(2) == "waits for a node's CPU (all 2 places are taken)"
    busy = {"keeper": None, "next_at": None}
    assert waits(Need(1), [], free=0, total=1, **busy) == "waits for 1 GPU (the only one is busy)"
    assert waits(Need(1), [], free=0, total=2, **busy) == "waits for 1 GPU (all 2 are busy)"
    kept = waits(Need(4), [], free=2, total=8, keeper="big", next_at=None, out=["n1", "n2"])
    assert kept == "waits for 4 GPUs (2 are free, kept for big; nodes n1, n2 are excluded)"


def test_unusable_nodes_are_named_with_the_remedy():
    assert no_usable_node(Need(1), ["n1", "n2"], ["n5", "n6"]) == (
        "waits for 1 GPU (nodes n1, n2 do not answer; "
        "nodes n5, n6 are excluded: lehr node readmit n5)"
    )
    assert no_usable_node(Need(1), [], []) == "waits for 1 GPU"
