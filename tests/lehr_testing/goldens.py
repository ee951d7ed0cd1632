"""Texts kept under ``tests/goldens/``: what people and programs are shown, compared to the letter.

To renew them after a change that is meant, and to read what changed:

    LEHR_RENEW_GOLDENS=1 python -m pytest tests/platform/cli/test_goldens.py tests/platform/cli/test_live.py
    git diff tests/goldens
"""

from __future__ import annotations

import difflib
import json
import os
import re
from typing import Any

from lehr_testing.paths import GOLDENS

FOLDER = GOLDENS
RENEW = "LEHR_RENEW_GOLDENS"

_ADDRESSES = re.compile(r"127\.0\.0\.1:\d+")
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
    """Gives what differs from run to run a name that stays: ids, addresses, folders, times."""

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


def check_json(name: str, found: Any) -> None:
    check(name, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
