"""Warnings look the same in all commands."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

import lehr.faces.cli
from lehr.faces.cli import output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _consoles_of_this_process():
    yield
    output.console.cache_clear()
    output.notes.cache_clear()


def test_warning_is_marked_yellow_and_free_of_markup_and_controls(monkeypatch):
    streams = [Terminal(), Terminal()]
    for name, stream in zip(("stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(output.sys, name, stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    output.console.cache_clear()
    output.notes.cache_clear()
    output.warn("disk [red]a[/] is full\x07")
    assert streams[0].getvalue() == "\x1b[33m! disk [red]a[/] is full\x1b[0m\n"
    output.warn("beside", on=output.notes())
    assert streams[1].getvalue() == "\x1b[33m! beside\x1b[0m\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("! one two three four five", ["! one two three four", "  five"]),
        ("  one two three four five", ["  one two three four", "  five"]),
        ("  seen    one two three", ["  seen    one two", "          three"]),
        ("one two three four five", ["one two three four", "  five"]),
        ("one\n  two", ["one", "  two"]),
    ],
)
def test_long_line_continues_below_its_text(monkeypatch, text, lines):
    stream = Terminal()
    monkeypatch.setattr(output.sys, "stdout", stream)
    monkeypatch.setattr(output, "_LEAST", 10)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "20")
    output.console.cache_clear()
    output.console().print(text)
    assert [line.rstrip() for line in stream.getvalue().splitlines()] == lines


def test_columns_without_a_value_are_left_out(monkeypatch, capsys):
    output.console.cache_clear()
    rows = output.table("name", "MFU", "ETA", "age")
    for name in ("a", "b"):
        rows.add_row(name, "—", "", "—")
    output.print_fitting(rows, fold="name", spare=("MFU", "ETA"))
    assert capsys.readouterr().out.split() == ["name", "age", "a", "—", "b", "—"]


def test_no_command_prints_a_warning_of_its_own_form():
    """`style="yellow"` is a warning: `warn` marks it for those who see no colours."""
    for path in Path(lehr.faces.cli.__file__).parent.glob("*.py"):
        if path.name != "output.py":
            assert 'style="yellow"' not in path.read_text(), f"{path.name}: use output.warn"
