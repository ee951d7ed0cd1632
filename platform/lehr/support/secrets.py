"""The values that must not leave this machine: those of the home's secret files and variables."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from lehr.secret_text import is_secret_name

_FILES = ("*token*", "webhooks.json", "secrets*", "join/*token*", "node/*token*")
_LARGEST = 1 << 20


def known_values(home: Path) -> set[str]:
    """Return every value of a secret file of the home, and of variables with a secret's name."""
    found = {value for name, value in os.environ.items() if is_secret_name(name)}
    for pattern in _FILES:
        for path in home.glob(pattern):
            with suppress(OSError, UnicodeDecodeError):
                if path.is_file() and path.stat().st_size <= _LARGEST:
                    found |= set(_values(path.read_text("utf-8")))
    return {value for value in found if value}


def _values(text: str) -> Iterator[str]:
    yield from (line.strip() for line in text.splitlines())
    with suppress(ValueError):
        yield from _strings(json.loads(text))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
