"""Answers stay short, and say what is missing."""

from __future__ import annotations

import json
import math

from lehr.faces.mcp.answers import MOST_CHARACTERS, clipped, text_of


def test_long_list_is_cut_and_counted() -> None:
    answer = text_of({"runs": [{"id": n, "why": "x" * 50} for n in range(2000)], "total": 2000})
    read = json.loads(answer)
    assert len(answer) <= MOST_CHARACTERS
    assert read["cut"] == {"runs": f"{2000 - len(read['runs'])} more"}
    assert [one["id"] for one in read["runs"]] == list(range(len(read["runs"])))


def test_long_text_is_cut() -> None:
    assert len(text_of({"text": "x" * 100_000})) <= MOST_CHARACTERS
    assert clipped("abcdef", 3) == "abc… (3 more characters)"


def test_empty_fields_are_left_out_and_numbers_are_short() -> None:
    answer = {"none": None, "list": [], "loss": 3.14159265, "zero": 0, "bad": math.nan}
    assert json.loads(text_of(answer)) == {"loss": 3.14159, "zero": 0, "bad": "nan"}
