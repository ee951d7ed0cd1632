"""Keep the logs that processes append to from growing without limit.

The server's own log, ``server.log``, rotates itself. The others are the output of processes that
hold them open for weeks, so they are copied and emptied in place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

APPENDED = ("server.out", "bridge.log", "wandb.log", "keeper.log", "ray.log", "ray-node.log")
MOST_BYTES = 20 * 1000 * 1000


def rotate(folder: Path, *, most_bytes: int = MOST_BYTES) -> list[str]:
    """Move the content of each log that is too large to ``NAME.1``. Return their names.

    Lines that are written between the copy and the emptying are lost: at most a few.
    """
    rotated = []
    for name in APPENDED:
        path = folder / name
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= most_bytes:
                continue
            draft = path.with_name(f".{name}.1.tmp")
            with path.open("rb") as source, draft.open("wb") as copy:
                # A log may have grown far beyond the limit; its end is what matters.
                source.seek(max(0, path.stat().st_size - most_bytes))
                shutil.copyfileobj(source, copy)
            draft.chmod(0o600)
            draft.replace(path.with_name(f"{name}.1"))
            os.truncate(path, 0)
            rotated.append(name)
    return rotated
