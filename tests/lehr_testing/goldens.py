"""Goldens: texts under ``tests/goldens/``, compared exactly with the output of commands.

To renew them after a change that is meant, and to read what changed:

    make docs  # Also the reference pages.
    git diff tests/goldens

Of a command's JSON, ``tests/goldens/cli.toml`` holds the values that matter; change them by hand.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from typing import Any

from lehr_testing.paths import GOLDENS

FOLDER = GOLDENS
RENEW = "LEHR_RENEW_GOLDENS"

_ADDRESSES = re.compile(r"127\.0\.0\.1:\d+")
_TOOK = re.compile(r"took \d+\.\d s")
_CLOCKS = re.compile(r"about (?:\w{3} )?\d\d:\d\d")


_BY_KEY = {"time": "TIME", "size": "BYTES", "spec": "SPEC", "host": "PROVENANCE"}


def _kind(key: str, value: Any) -> str | None:
    if (key == "at" or key.endswith("_at")) and isinstance(value, int | float):
        return "time"
    if key == "spec" and isinstance(value, dict):
        return "spec"
    if key == "provenance" and "fork" not in value:
        return "host"
    return "size" if key == "events.jsonl" else None


class Names:
    """Replace values that differ between runs by fixed names: ids, addresses, folders, times."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def give(self, value: str, name: str) -> None:
        """``name`` of the same length keeps tables straight."""
        self._given[value] = name

    def text(self, text: str) -> str:
        for value, name in sorted(self._given.items(), key=lambda item: -len(item[0])):
            text = text.replace(value, name)
        text = _ADDRESSES.sub("SERVER", text)
        text = _CLOCKS.sub("about HH:MM", text)
        text = _TOOK.sub("took N s", text)
        return "".join(f"{line.rstrip()}\n" for line in text.splitlines())

    def json(self, value: Any) -> Any:
        """The same for JSON; times and sizes are known by their keys, and a spec is left out."""
        if isinstance(value, dict):
            return {
                self.text(key).strip("\n"): _BY_KEY[kind] if kind else self.json(one)
                for key, one in value.items()
                for kind in [_kind(key, one)]
            }
        if isinstance(value, list):
            return [self.json(one) for one in value]
        if isinstance(value, str):
            ended = value.endswith("\n")
            return self.text(value) if ended else self.text(value).removesuffix("\n")
        return value


def check(name: str, found: str) -> None:
    """Compare with the golden of that name, or write it when they are being renewed."""
    path = FOLDER / name
    if os.environ.get(RENEW):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found)
        return
    kept = path.read_text() if path.exists() else ""
    if found != kept:
        shown = "".join(
            difflib.unified_diff(
                kept.splitlines(keepends=True),
                found.splitlines(keepends=True),
                f"tests/goldens/{name}",
                "found",
            )
        )
        raise AssertionError(f"{shown}\nIf this is meant: {RENEW}=1 python -m pytest ...")


def check_values(name: str, found: Any) -> None:
    """Compare the values that ``tests/goldens/cli.toml`` names under ``name``."""
    wanted = tomllib.loads((FOLDER / "cli.toml").read_text())[name]
    there = {path: _look(found, path.split(".")) for path in wanted}
    wrong = [
        f"{path}: {there[path]!r}, not {value!r}"
        for path, value in wanted.items()
        if there[path] != value
    ]
    assert not wrong, "\n".join([f"[{name}] of tests/goldens/cli.toml:", *wrong])


def _look(value: Any, path: list[str]) -> Any:
    """Return the value at ``path``: keys, list positions, and ``*`` for each item of a list."""
    if not path:
        return value
    first, *rest = path
    if isinstance(value, list):
        return (
            [_look(one, rest) for one in value] if first == "*" else _look(value[int(first)], rest)
        )
    return _look(value[first], rest)


def check_json(name: str, found: Any) -> None:
    check(name, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
