"""Version of NVIDIA's driver. Standard library only: programs without torch are described, too."""

from __future__ import annotations

import re
from pathlib import Path

_FILE = Path("/proc/driver/nvidia/version")


def driver_version() -> str:
    """Return the version of NVIDIA's driver; none without one."""
    try:
        text = _FILE.read_text(encoding="utf-8")
    except OSError:
        return "none"
    match = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else "unknown"
