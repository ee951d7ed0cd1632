"""Detect misspelt GPU types: such a run would wait for ever."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lehr.control.resources import is_type
from lehr_trainer.planning.hardware import GPUS

_ALSO = (
    *("A2", "A16", "A30", "A800", "A1000", "A2000", "A4000", "A4500", "A5000", "A5500", "A6000"),
    *("B100", "B300", "GB200", "GB300", "H20", "H800", "L2", "L20", "L40", "P4", "P40", "P100"),
    *("K80", "RTX 2080", "RTX 3060", "RTX 3070", "RTX 3080", "RTX 4060", "RTX 4070", "RTX 4080"),
    *("RTX 5060", "RTX 5070", "RTX 5080", "RTX 5090", "RTX 6000", "Quadro", "Titan", "GTX"),
    *("MI100", "MI210", "MI250", "MI250X", "MI300A", "MI300X", "MI325X", "MI350X", "MI355X"),
)
"""Names of GPUs that are missing in the trainer's table of peaks."""
_CLOSE = 0.8
"""Threshold of difflib's ratio: one wrong letter in a name of four."""


def likely_meant(given: str, existing: Iterable[str]) -> str | None:
    """Return the name that was likely meant; None when ``given`` may be right.

    It may be right if a GPU of the cluster (``existing``) is of that type, if it contains a known
    name, if it is spelled as the driver does (``NVIDIA ...``), or if it is unlike any known name:
    new GPUs appear, and a run may wait for a node that will join later.
    """
    known = [*dict.fromkeys(gpu.kind for gpu in GPUS), *_ALSO]
    if any(is_type(name, given) for name in (*existing, *known)):
        return None
    if any(is_type(given, name) for name in known) or given.upper().startswith("NVIDIA "):
        return None
    by_key = {name.upper(): name for name in known}
    close = difflib.get_close_matches(given.upper().strip(), by_key, n=1, cutoff=_CLOSE)
    return by_key[close[0]] if close else None
