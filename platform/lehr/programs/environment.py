"""The environment of a program: versions of everything that it may import, and its machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

_NAMED = 10
"""Changed versions that are listed; the others are counted."""


@cache
def versions() -> dict[str, str]:
    """Return the version of Python and of every installed distribution."""
    found = {"python": platform.python_version()}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower(), distribution.version)
    return dict(sorted(found.items()))


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the versions that differ, as ``torch 2.12 -> 2.13``, the most important ones first.

    A distribution that was not installed before counts as unchanged.
    """
    first = ("python", "torch", "numpy")
    names = sorted(before, key=lambda name: (name not in first, name))
    found = [
        f"{name} {before[name]} -> {now.get(name, 'none')}"
        for name in names
        if before[name] != now.get(name)
    ]
    more = len(found) - _NAMED
    return [*found[:_NAMED], f"{more} more"] if more > 0 else found


def host() -> dict[str, Any]:
    return {
        "hostname": platform.node(),
        "pid": os.getpid(),
        "command": sys.orig_argv,
        "cpus": os.cpu_count(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
