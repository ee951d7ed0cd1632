"""The identity of the folder of runs as one node sees it.

Nodes with equal identities share the folder, however it is mounted. So nobody has to declare it,
and no declaration can be wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lehr.base.filesystems import nearest_existing
from lehr_trainer.contract import layout

PATIENCE_S = 10.0  # A network file system that hangs must not hang the agent.
UNMARKED = ""  # The identity of a folder of which nobody has drawn one yet.
_ID = re.compile(rb"[0-9a-f]{32}\n")


def folder_id(folder: Path, patience_s: float = PATIENCE_S) -> str | None:
    """Return the folder's identity, drawn by whoever looks first; None if it cannot be known.

    The folder is created if it is missing.
    """
    return _patiently(_read_or_draw, folder, patience_s)


def known_id(folder: Path, patience_s: float = PATIENCE_S) -> str | None:
    """Return the folder's identity, and change nothing; None if it cannot be known or drawn.

    ``UNMARKED`` if there is none yet, and ``folder_id`` could draw one.
    """
    return _patiently(_read_or_none_yet, folder, patience_s)


def _patiently(read: Callable[[Path], str], folder: Path, patience_s: float) -> str | None:
    found: list[str] = []

    def look() -> None:
        # A folder that cannot be used here has no identity; a run would report why.
        with contextlib.suppress(OSError, ValueError):
            found.append(read(folder))

    # A thread, because no signal ends a read from a file server that does not answer.
    thread = threading.Thread(target=look, name="runs-folder", daemon=True)
    thread.start()
    thread.join(patience_s)
    return found[0] if found else None


def _read_or_none_yet(folder: Path) -> str:
    try:
        return _read(folder / layout.RUNS_MARKER)
    except FileNotFoundError:
        existing = nearest_existing(folder)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(f"{existing} cannot be written")
    return UNMARKED


def _read_or_draw(folder: Path) -> str:
    marker = folder / layout.RUNS_MARKER
    try:
        return _read(marker)
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"{layout.RUNS_MARKER}.{secrets.token_hex(8)}"
    with draft.open("xb") as file:
        file.write(secrets.token_hex(16).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    # A link is atomic on network file systems, too: of two nodes, one wins.
    with contextlib.suppress(FileExistsError):
        marker.hardlink_to(draft)
    draft.unlink()
    return _read(marker)


def _read(marker: Path) -> str:
    descriptor = os.open(marker, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        data = os.read(descriptor, 64)
    finally:
        os.close(descriptor)
    if not _ID.fullmatch(data):
        raise ValueError(f"{marker} has no identity")
    return data.decode().strip()


RUNS = "LEHR_RUNS"
DATA = "LEHR_DATA"


def runs_dir(of_server: str) -> Path:
    """Return the folder of runs on this node. ``of_server``: the path on the server's machine."""
    return Path(os.environ.get(RUNS) or of_server)


def localize(launch: dict[str, Any]) -> dict[str, Any]:
    theirs = os.path.dirname(str(launch["run_dir"]))  # noqa: PTH120 - paths of another machine
    ours = str(runs_dir(theirs))
    data = os.environ.get(DATA)
    found = dict(launch)
    if data:
        found["env"] = {**launch["env"], DATA: data}
    if ours == theirs:
        return found

    def moved(path: str | None) -> str | None:
        inside = path is not None and path.startswith(theirs + "/")
        return ours + path[len(theirs) :] if path is not None and inside else path

    found |= {name: moved(launch[name]) for name in ("run_dir", "attempt_dir")}
    found["files"] = {
        name: _moved_note(text, moved) if name.endswith(f"/{layout.LAUNCH}") else text
        for name, text in launch["files"].items()
    }
    if launch.get("fetch"):
        found["fetch"] = [{**one, "path": moved(one["path"])} for one in launch["fetch"]]
    return found


def _moved_note(text: str, moved: Any) -> str:
    """Return the launch note; a fork's checkpoint has an absolute path in it."""
    note = json.loads(text)
    note["resume_from"] = moved(note.get("resume_from"))
    return json.dumps(note)
