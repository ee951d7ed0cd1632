"""The environment of a program: versions of everything that it may import, and its machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from lehr_trainer.runtime import installed
from lehr_trainer.runtime.installed import driver_version

_NAMED = 10
"""Changed versions that are listed; the others are counted."""


def interpreter() -> str:
    """Return the interpreter of the program: of its environment, if its spec names one."""
    return os.environ.get("LEHR_PYTHON") or sys.executable


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, CUDA, the driver and all distributions of a program."""
    driver = {"driver": driver_version()}
    if interpreter() == sys.executable:
        return installed.installed() | driver
    script = str(Path(installed.__file__).absolute())
    done = subprocess.run([interpreter(), "-P", script], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found | driver


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the versions that differ, as ``torch 2.12 -> 2.13``, the most important ones first.

    A distribution that was not installed before counts as unchanged.
    """
    first = ("python", "torch", "cuda", "driver", "numpy")
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
