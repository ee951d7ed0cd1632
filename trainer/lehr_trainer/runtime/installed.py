"""Versions of what a Python can import: itself, torch's CUDA, and every distribution.

Standard library only: run as a script, it prints the versions of another interpreter.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from email.parser import HeaderParser
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path


def installed() -> dict[str, str]:
    """Return the versions of this Python, of torch's CUDA, and of every distribution."""
    return distributions() | {"python": platform.python_version(), "cuda": _cuda()}


@cache
def distributions() -> dict[str, str]:
    """Return the version of every distribution that this Python finds first.

    Without setuptools' own copies (``setuptools/_vendor``): it adds them to ``sys.path`` when it
    is first imported, so the record of a run would depend on what was imported before.
    """
    found: dict[str, str] = {}
    paths = [path for path in sys.path if Path(path).parts[-2:] != ("setuptools", "_vendor")]
    for distribution in metadata.distributions(path=paths):
        # ``distribution.metadata`` parses the whole README too, and ``.version`` does it again.
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


if __name__ == "__main__":
    print(json.dumps(installed()))


_FILE = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """Return the version of NVIDIA's driver; none without one."""
    try:
        text = _FILE.read_text(encoding="utf-8")
    except OSError:
        return "none"
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else "unknown"
