"""The YAML reader: errors with line and column, and values at the limits."""

from __future__ import annotations

import json

import pytest

from lehr.errors import SpecError
from lehr.specs import yaml12
from lehr.specs.yaml12 import MAX_CHARACTERS, MAX_DEPTH, read_json, read_yaml

LARGE = 2**63


def refused(read, text: str) -> tuple[str, int | None, int | None]:
    with pytest.raises(SpecError) as caught:
        read(text, "a file")
    [problem] = caught.value.problems
    assert (problem.path, problem.source) == ("", "a file")
    return problem.message, problem.line, problem.column


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        ("a:\n  !!int x\n", "x is not a YAML int.", 2, 3),
        ("a: !!int 1.5", "1.5 is not a YAML int.", 1, 4),
        ("a: !!bool 1", "1 is not a YAML bool.", 1, 4),
        ("a: !!float true", "true is not a YAML float.", 1, 4),
        ("a: !!null 0", "0 is not a YAML null.", 1, 4),
        (f"a: !!int {'x' * 41}", f"{'x' * 37}... is not a YAML int.", 1, 4),
        ("a: !other 1", "the tag !other is not allowed: a spec is plain data.", 1, 4),
        ("a: !!set {b}", "the tag !!set is not allowed: a spec is plain data.", 1, 4),
        ("a: !!omap [b: 1]", "the tag !!omap is not allowed: a spec is plain data.", 1, 4),
        (f"a: {LARGE}", f"{LARGE} does not fit in 64 bits.", 1, 4),
        (f"a: {-LARGE - 1}", f"{-LARGE - 1} does not fit in 64 bits.", 1, 4),
        (f"a: 0x{LARGE:x}", f"0x{LARGE:x} does not fit in 64 bits.", 1, 4),
        (f"a: 0o{LARGE:o}", f"0o{LARGE:o} does not fit in 64 bits.", 1, 4),
        (f"a: {'9' * 100}", f"{'9' * 37}... does not fit in 64 bits.", 1, 4),
        ('a: "\\ud800"', "half of a surrogate pair is not a character.", 1, 4),
        ("a: 1\nb: *c", "this is not YAML: found undefined alias 'c'.", 2, 4),
        ("a: &a\n  b: *a", f"nested more than {MAX_DEPTH} deep.", 1, 4),
        ("--- 1\n--- 2\n", "this is not YAML: expected a single document in the stream", 2, 1),
        ("? [a]\n: b\n", "a key must be plain text.", 1, 3),
        ("a: 1\nb: 2\na: 3\n", "a is given twice (first in line 1).", 3, 1),
        (f"a: {nested(MAX_DEPTH + 1)}", f"nested more than {MAX_DEPTH} deep.", 1, MAX_DEPTH + 4),
        ("a: b\nc: \x01", "a character that YAML does not allow", 2, 4),
        ("[" * 5000, f"it is nested more than {MAX_DEPTH} deep.", None, None),
        ('{"a": 1}\n{"a": 2}\n', "this is not YAML: it is one document, and another begins", 2, 1),
        ('a: "\\UFFFFFFFF"', "this is not YAML: ", None, None),
        ("a: 1\nb: [1\n", "this is not YAML: while parsing a flow sequence", 3, 1),
    ],
)
def test_yaml_error_has_line_and_column(text, message, line, column):
    found_message, *place = refused(read_yaml, text)
    assert found_message.startswith(message)
    assert place == [line, column]


@pytest.mark.parametrize(
    ("text", "message", "line", "column"),
    [
        (f'{{"a": {LARGE}}}', f"{LARGE} does not fit in 64 bits.", None, None),
        (f'{{"a": {-LARGE - 1}}}', f"{-LARGE - 1} does not fit in 64 bits.", None, None),
        ('{"a": Infinity}', "Infinity is not a JSON number.", None, None),
        ('{"a": {"b": 1, "b": 2}}', "b is given twice in one object.", None, None),
        ('{\n"a": }', "this is not JSON: Expecting value.", 2, 6),
        ("[" * 100_000, f"it is nested more than {MAX_DEPTH} deep.", None, None),
        (nested(MAX_DEPTH + 2), f"nested more than {MAX_DEPTH} deep.", 1, MAX_DEPTH + 2),
        (" " * (MAX_CHARACTERS + 1), "it has 200,001 characters; at most 200,000", None, None),
    ],
)
def test_json_error_has_line_and_column(text, message, line, column):
    found_message, *place = refused(read_json, text)
    assert found_message.startswith(message)
    assert place == [line, column]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (str(LARGE - 1), LARGE - 1),
        (str(-LARGE), -LARGE),
        (f"0x{LARGE - 1:x}", LARGE - 1),
        ("-.inf", float("-inf")),
        ("+.inf", float("inf")),
        ("True", True),
        ("FALSE", False),
        ("!!int 0x10", 16),
        ("!!bool true", True),
        ("!!null ~", None),
        ("\ufeffa: 1", {"a": 1}),
        (nested(MAX_DEPTH + 1), json.loads(nested(MAX_DEPTH + 1))),
        (
            "a: &a [1, 2]\nb: &b [*a, *a]\nc: *b",
            {"a": [1, 2], "b": [[1, 2]] * 2, "c": [[1, 2]] * 2},
        ),
        (" " * MAX_CHARACTERS, None),
    ],
)
def test_values_at_the_limits_are_read(text, value):
    found = read_yaml(text).data
    assert found == value
    assert type(found) is type(value)


def test_limit_on_values_includes_those_of_aliases(monkeypatch):
    monkeypatch.setattr(yaml12, "MAX_VALUES", 6)
    limit = "more than 6 values, with those of aliases."
    assert read_yaml("[1, 2, 3, 4, 5]").data == [1, 2, 3, 4, 5]
    assert refused(read_yaml, "[1, 2, 3, 4, 5, 6]") == (limit, 1, 17)
    assert read_yaml("- &a [1]\n- *a\n").data == [[1], [1]]
    assert refused(read_yaml, "- &a [1, 2]\n- *a\n") == (limit, 1, 10)
