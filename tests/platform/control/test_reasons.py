"""How long it will still take, as people read it."""

import pytest

from lehr.control.reasons import about


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
def test_a_duration_is_rounded_to_what_is_known(seconds, text):
    assert about(seconds) == text
