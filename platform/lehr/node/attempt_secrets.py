"""The secrets of an attempt on their way from the agent to its shim. Standard library only.

The agent writes them into a file of their own; the shim removes it before the trainer starts, so
that they are on no disk while the attempt runs.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = "secrets.json"


def take(folder: str) -> dict[str, str]:
    """Return the variables with their values, and remove the file. Empty if there are none.

    Args:
        folder: the attempt's folder on its node.

    Raises:
        OSError: the file cannot be read or removed.
    """
    path = Path(folder, FILE)
    try:
        found: dict[str, str] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    path.unlink()
    return found
