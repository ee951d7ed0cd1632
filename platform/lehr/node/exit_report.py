"""exit.json: how an attempt ended, with the log lines that show why. Standard library only."""

import json
import os
import time
from typing import Any

from lehr.base import procfs

_TAIL_BYTES = 6_000
_LOGS = 3
_FINISHED = ("outcome", "step", "cause", "message")
_ERROR_WORDS = (b"Traceback", b"Error", b"error:", b"Killed", b"Signal ")


def build(
    attempt_dir: str,
    *,
    code: int | None,
    reason: str,
    detail: str,
    started_at: float | None,
    boot_id: str,
) -> dict[str, Any]:
    """Build the report from the process's return code (negative for a signal) and its files.

    ``reason`` is empty when the process ended by itself; ``detail`` explains it.
    """
    failed = code != 0 or reason not in {"", "stopped", "terminated"}
    tail = log_tail(attempt_dir) if failed else ""
    if failed and not reason and is_full(attempt_dir):
        # Then the trainer could not write its last record either.
        detail = f"No space left on device: {attempt_dir}"
    return {
        "code": None if code is None or code < 0 else code,
        "signal": -code if code is not None and code < 0 else None,
        "reason": reason,
        "detail": detail,
        "started_at": started_at,
        "ended_at": time.time(),
        "boot_id": boot_id,
        "log_tail": f"{tail}\n{detail}".strip() if detail else tail,
        # A copy of the trainer's last record, in case its stream never arrives.
        "finished": finished(attempt_dir),
    }


def is_full(folder: str) -> bool:
    """Return whether less than a MiB is free for ordinary users on the disk of ``folder``."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < 1 << 20


def log_tail(attempt_dir: str) -> str:
    """Return the last lines of the logs that are likely to contain the error."""
    try:
        names = sorted(name for name in os.listdir(attempt_dir) if name.endswith(".log"))
    except OSError:
        return ""
    paths = [os.path.join(attempt_dir, name) for name in names]
    tails = [(path, tail) for path in paths if (tail := last_bytes(path, _TAIL_BYTES))]
    errors = [(p, t) for p, t in tails if any(word in t for word in _ERROR_WORDS)]
    chosen = (errors or tails)[:_LOGS]
    # torchrun's own report comes last, because the ranks' logs have more details.
    chosen.sort(key=lambda item: os.path.basename(item[0]).startswith("launcher"))
    parts = []
    for path, tail in chosen:
        text = tail.decode("utf-8", "replace").strip()
        parts.append(f"== {os.path.basename(path)}\n{text}" if len(chosen) > 1 else text)
    return "\n".join(parts)


def finished(attempt_dir: str) -> dict[str, Any] | None:
    """Return what the server reads of the ``finished`` record, if events.jsonl ends with one.

    Other fields are left out. They may be nested as deeply as JSON can be read here, and with the
    report around them nobody else could read it.
    """
    tail = last_bytes(os.path.join(attempt_dir, "events.jsonl"), 65_536)
    for line in reversed(tail.splitlines()):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and record.get("kind") == "finished":
            return {
                name: value
                for name, value in record.items()
                if name in _FINISHED and isinstance(value, str | int | None)
            }
        return None
    return None


def last_bytes(path: str, limit: int) -> bytes:
    try:
        with procfs.open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return file.read()
    except OSError:
        return b""
