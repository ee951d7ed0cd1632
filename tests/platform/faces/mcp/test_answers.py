"""Answers stay short, and say what is missing."""

from __future__ import annotations

import json
import math

from lehr.faces.mcp.answers import MOST_CHARACTERS, clipped, text_of


def test_long_text_is_cut() -> None:
    answer = text_of({"runs": [{"id": n, "why": "x" * 50} for n in range(2000)]})
    assert len(answer) <= MOST_CHARACTERS
    assert answer.endswith(" more characters)")
    assert clipped("abcdef", 3) == "abc… (3 more characters)"


def test_empty_fields_are_left_out_and_numbers_are_short() -> None:
    answer = {"none": None, "list": [], "loss": 3.14159265, "zero": 0, "bad": math.nan}
    assert json.loads(text_of(answer)) == {"loss": 3.14159, "zero": 0, "bad": "nan"}
