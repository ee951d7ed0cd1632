"""The environment of a program: versions of everything that it may import, and its machine."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from email.parser import HeaderParser
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_NAMED = 10
"""Changed versions that are listed; the others are counted."""


def interpreter() -> str:
    """Return the interpreter of the program: of its environment, if its spec names one."""
    return os.environ.get("LEHR_PYTHON") or sys.executable


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python, CUDA, the driver and all distributions of a program."""
    from lehr_trainer.runtime.driver import driver_version  # Not for the script below.

    driver = {"driver": driver_version()}
    if interpreter() == sys.executable:
        return installed() | driver
    this = Path(__file__).absolute()
    done = subprocess.run(
        [interpreter(), "-P", str(this)], capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(done.stdout)
    return found | driver


def installed() -> dict[str, str]:
    """Return the versions of this Python, of torch's CUDA, and of every distribution that it finds
    first.
    """
    found = {"python": platform.python_version(), "cuda": _cuda()}
    for distribution in metadata.distributions():
        # Its ``metadata`` would parse the whole README too, and its ``version`` once more.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        head = HeaderParser().parsestr(text.partition("\n\n")[0])
        if head["Name"]:
            found.setdefault(head["Name"].lower(), head["Version"])
    return dict(sorted(found.items()))


def _cuda() -> str:
    """Return the version of CUDA that torch was built for, without importing torch."""
    torch = find_spec("torch")
    if torch is None or torch.origin is None:
        return "none"
    try:
        text = Path(torch.origin).with_name("version.py").read_text(encoding="utf-8")
    except OSError:
        return "none"
    match = re.search(r"""^cuda\b[^=\n]*=\s*["']([^"']+)["']""", text, re.MULTILINE)
    return match.group(1) if match else "none"


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


if __name__ == "__main__":
    print(json.dumps(installed()))
