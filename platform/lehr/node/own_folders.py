"""The node's own folders in place of the server's, where ``LEHR_RUNS`` or ``LEHR_DATA`` name them.

The server sends the paths of its own machine. On shared storage they are the same everywhere. A
node with another user, disk or mount point has its own paths in its environment.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from lehr_trainer.contract import layout

RUNS = "LEHR_RUNS"
DATA = "LEHR_DATA"


def runs_dir(of_server: str) -> Path:
    """Return the folder of runs on this node. ``of_server``: the path on the server's machine."""
    return Path(os.environ.get(RUNS) or of_server)


def localize(launch: dict[str, Any]) -> dict[str, Any]:
    """Return the launch spec with the paths of this node."""
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
