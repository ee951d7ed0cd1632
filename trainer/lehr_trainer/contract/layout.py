"""Names of folders and files in a run directory, defined only here.

::

    <run>/
      config.yaml                     resolved TrainConfig, complete
      attempt-1/                      one folder a launch; never reused
        launch.json                   LaunchNote: what this attempt resumes from
        orders.json                   what the platform wants of it (see orders.py)
        events.jsonl                  THE stream (see records.py)
        media.bin                     images, tables and files that a program logs, end to end
        rank-0.log ...                stdout and stderr, one file a rank
        launcher.log                  torchrun's own output
        hang.log, hang.json           where steps stopped, and what each rank did then
        checkpoints/step-00002500/    data files, then manifest.json last
        profiles/
        exit.json                     written last, by whoever waited for torchrun
"""

from __future__ import annotations

import os
import re
from pathlib import Path

RUNS_MARKER = ".lehr-folder"
"""File in the folder of runs; it identifies the folder to all nodes that share it."""
CONFIG = "config.yaml"
EVENTS = "events.jsonl"
MEDIA = "media.bin"
ORDERS = "orders.json"
LAUNCH = "launch.json"
CHECKPOINTS = "checkpoints"
PROFILES = "profiles"
MANIFEST = "manifest.json"

_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,8})")
_STEP = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,17})")


def code_digest() -> str | None:
    """Return the digest of the capsule that this process trains with; None without one."""
    return os.environ.get("LEHR_CODE") or None


def attempt_dir(run_dir: Path, attempt: int) -> Path:
    return run_dir / f"attempt-{attempt}"


def attempt_number(path: Path) -> int | None:
    """Return 3 for ``.../attempt-3``; None for anything else."""
    match = _ATTEMPT.fullmatch(path.name)
    return int(match.group(1)) if match else None


def attempts(run_dir: Path) -> list[Path]:
    """List the attempt folders of a run, oldest first."""
    found = [p for p in run_dir.glob("attempt-*") if p.is_dir() and attempt_number(p)]
    return sorted(found, key=lambda p: attempt_number(p) or 0)


def rank_log(attempt: Path, rank: int) -> Path:
    return attempt / f"rank-{rank}.log"


def checkpoint_dir(attempt: Path, step: int) -> Path:
    return attempt / CHECKPOINTS / f"step-{step:08d}"


def checkpoint_step(path: Path) -> int | None:
    """Return 2500 for ``.../step-00002500``; None for anything else, such as ``.tmp``."""
    match = _STEP.fullmatch(path.name)
    return int(match.group(1)) if match else None


def file_kind(name: str) -> str:
    """Return what a checkpoint's file holds.

    ``model`` for ``model.safetensors`` and ``model-00001-of-00002.safetensors``, ``state`` for
    ``state.json``.
    """
    return name.partition(".")[0].partition("-")[0]


def checkpoint_at(path: str) -> tuple[int, int] | None:
    """Parse attempt and step from a checkpoint's path, relative to the run directory.

    ``(1, 2500)`` for ``attempt-1/checkpoints/step-00002500``; None for anything else.
    """
    parts = path.split("/")
    if len(parts) != 3 or parts[1] != CHECKPOINTS:
        return None
    attempt, step = attempt_number(Path(parts[0])), checkpoint_step(Path(parts[2]))
    return None if attempt is None or step is None else (attempt, step)


def checkpoints(attempt: Path) -> list[Path]:
    """List the finished checkpoints of one attempt (those with a manifest), oldest first."""
    found = [
        p
        for p in (attempt / CHECKPOINTS).glob("step-*")
        if checkpoint_step(p) is not None and (p / MANIFEST).is_file()
    ]
    return sorted(found, key=lambda p: checkpoint_step(p) or 0)


def data_root() -> Path:
    """Return the folder of prepared token shards: ``LEHR_DATA``, else ``data`` in Lehr's home."""
    if root := os.environ.get("LEHR_DATA"):
        return Path(root)
    return Path(os.environ.get("LEHR_HOME", "~/.lehr")).expanduser() / "data"
