"""Logs of Lehr's own processes: the fields of a line, and files that do not grow without limit."""

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


def of_attempt(attempt_id: str) -> dict[str, str]:
    return {"run": attempt_id.rpartition("-")[0] or attempt_id, "attempt": attempt_id}


def of(kind: str, name: str) -> dict[str, str]:
    """Return the field of a run, a sweep or a rollout; nothing for anything else.

    ``kind``: of a subject or a change. The metrics and logs that change are a run's.
    """
    kind = "run" if kind in {"metrics", "log"} else kind
    return {kind: name} if kind in {"run", "sweep", "rollout"} else {}
