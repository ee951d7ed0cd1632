"""Limits of what one attempt may store.

A worker is not trusted, and the disk and the index serve all runs.
"""

from __future__ import annotations

import os
from pathlib import Path

from lehr.errors import StoreUnavailable

MAX_STREAMS = 2048  # Streams of an attempt: a log per rank, and a few more.
MAX_METRICS = 10_000
"""Names of metrics of an attempt. Each append reads the newest value of each of them."""
EVENTS_CAP = 8 << 30
"""Bytes of an attempt's events, about 10 million steps. The rest is confirmed, but not stored."""
LOGS_CAP = 16 << 30  # Bytes of all logs of an attempt.
SMALL_LOG = 4 << 20
"""A log up to this size is stored in any case: ``MAX_STREAMS`` of them are 8 GiB."""
MEDIA_CAP = 1 << 30
"""Bytes of an attempt's images, tables and files. ``lehr_log`` records no more, with a warning."""
RESERVE = 256 << 20
"""Bytes that streams leave free on the disk, for ``lehr.db``: decisions must be recorded."""
RESERVE_SHARE = 0.05  # Of a small disk, the reserve is this share.


def require_room(folder: Path) -> None:
    """Require that streams leave the reserve free on the disk of ``folder``.

    Raises:
        StoreUnavailable: they would not. Senders keep their bytes and try again.
    """
    found = os.statvfs(folder)
    reserve = int(min(RESERVE, RESERVE_SHARE * found.f_blocks * found.f_frsize))
    free = found.f_bavail * found.f_frsize
    if free < reserve:
        raise StoreUnavailable(
            f"The disk of {folder} has {free >> 20:,} MiB free; streams leave "
            f"{reserve >> 20:,} MiB for the database."
        )
