"""What the node and its GPUs do, as values of a run's records: ``system/...``.

The node's agent measures them and writes its newest sample to a file, so no training waits for a
driver. Of a run on several nodes, the first node is recorded: rank 0 writes the records.
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path

VARIABLE = "LEHR_SYSTEM"
"""Path of the file; an attempt has it in its environment."""
EVERY_S = 10.0
FRESH_S = 20.0
"""An older sample is outdated: its agent has ended, or its disk hangs."""


class SystemSamples:
    """Reads the samples of this node, with the GPUs that this process may use."""

    def __init__(self) -> None:
        self._path = os.environ.get(VARIABLE)
        self._gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        self._next = 0.0

    def due(self) -> dict[str, float]:
        """Return the values for a record that is written now; none within ``EVERY_S`` of others.

        The GPUs of the run are counted from 0: ``system/gpu0_utilization``.
        """
        if self._path is None or (now := time.monotonic()) < self._next:
            return {}
        self._next = now + EVERY_S
        try:
            if time.time() - Path(self._path).stat().st_mtime > FRESH_S:
                return {}
            sample = json.loads(Path(self._path).read_bytes())
            host = {f"system/{name}": value for name, value in sample["host"].items()}
            gpus = {
                f"system/gpu{number}_{name}": value
                for number, index in enumerate(self._gpus)
                for name, value in sample["gpus"].get(index, {}).items()
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return {}
        return {
            name: float(value)
            for name, value in (host | gpus).items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
