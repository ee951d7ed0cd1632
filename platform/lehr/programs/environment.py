"""The environment of a program: versions of everything that it may import, and its machine."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any


def versions() -> dict[str, str]:
    """Return the version of Python and of every installed distribution."""
    found = {"python": platform.python_version()}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(name.lower(), distribution.version)
    return dict(sorted(found.items()))


def host() -> dict[str, Any]:
    return {
        "hostname": platform.node(),
        "pid": os.getpid(),
        "command": sys.orig_argv,
        "cpus": os.cpu_count(),
        "cuda_visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }
