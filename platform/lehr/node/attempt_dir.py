"""An attempt's folder on its node: files that shim, shipper and agent share.

Standard library only. ::

    <node folder>/attempts/<attempt id>/
      launch.json    what to start, with the attempt's token (mode 0600); written before all else
      alive          held (flock) by the shim while it lives, and touched whenever it wakes up
      shim.json      boot id, pid, start time of the shim
      control.json   the requested stop level
      stopped-by.json  the command on its machine that stops it, e.g. lehr down
      exit.json      how it ended: its processes are gone
      delivered      the server has everything
      copying.json   checkpoints that are not copied yet
      uploaded       all checkpoints are copied
      shim.log       log of shim and shipper
    <node folder>/server.json    where the server is, if it moved since
    <node folder>/system.json    what the agent measured last: CPU, memory, disk, network, GPUs

The folder is local to the node; the attempt's own directory may be on shared storage.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from lehr.base import procfs
from lehr.base.procfs import read_json, write_json

STOP_LEVELS = ("order", "term", "kill")


class AttemptDir(NamedTuple):
    path: str

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def of_node(self, name: str) -> str:
        """Return the path of a file of the node's folder."""
        return os.path.join(os.path.dirname(os.path.dirname(self.path)), name)

    @property
    def attempt_id(self) -> str:
        return os.path.basename(self.path)

    def launch(self) -> dict[str, Any] | None:
        found = read_json(self.file("launch.json"))
        return found if isinstance(found, dict) else None

    def exit(self) -> dict[str, Any] | None:
        found = read_json(self.file("exit.json"))
        return found if isinstance(found, dict) else None

    @property
    def delivered(self) -> bool:
        return os.path.exists(self.file("delivered"))

    @property
    def is_done(self) -> bool:
        """Return whether nothing is left to do: all is delivered, and copied if requested."""
        if not self.delivered:
            return False
        return os.path.exists(self.file("uploaded")) or not (self.launch() or {}).get("upload")

    def copying(self) -> tuple[int, str | None] | None:
        """Return how many checkpoints wait to be copied, and the last error.

        None while unknown: the attempt still runs, or its uploader has not checked since.
        """
        found = read_json(self.file("copying.json"))
        if not isinstance(found, dict) or not found.get("ended"):
            return None
        return int(found["waiting"]), found.get("error")

    def server_url(self, launch: dict[str, Any]) -> str:
        """Return the server's current address, which may have changed since the start."""
        moved = read_json(self.of_node("server.json"))
        url = moved.get("url") if isinstance(moved, dict) else None
        return str(url or launch["server_url"])

    def stop_level(self) -> tuple[str, str] | None:
        found = read_json(self.file("control.json"))
        if not isinstance(found, dict) or found.get("stop_level") not in STOP_LEVELS:
            return None
        return str(found["stop_level"]), str(found.get("reason", ""))

    def request_stop(self, stop_level: str, reason: str) -> bool:
        """Request a stop at this level; return False if it was already requested."""
        now = self.stop_level()
        if now is not None and STOP_LEVELS.index(now[0]) >= STOP_LEVELS.index(stop_level):
            return False
        write_json(self.file("control.json"), {"stop_level": stop_level, "reason": reason})
        return True

    def note_command(self, command: str) -> None:
        """Note which command of Lehr stops it, for the signal that follows."""
        with contextlib.suppress(OSError):  # The signal matters more.
            write_json(self.file("stopped-by.json"), {"command": command})

    def stopped_by(self) -> str:
        """Return the noted command; SIGTERM is from outside Lehr if there is none."""
        found = read_json(self.file("stopped-by.json"))
        return str(found["command"]) if isinstance(found, dict) and "command" in found else ""

    def hold(self) -> int | None:
        """Take the shim's lock and return its descriptor; None when another shim holds it."""
        descriptor = os.open(self.file("alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def held(self) -> bool:
        """Return whether a shim lives here. The agent removes the folder of a delivered attempt."""
        try:
            descriptor = self.hold()
        except FileNotFoundError:
            return False
        if descriptor is None:
            return True
        os.close(descriptor)
        return False

    def touch(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.file("alive"))

    def signal_shim(self, number: int) -> None:
        shim = read_json(self.file("shim.json"))
        if isinstance(shim, dict) and procfs.is_same(
            shim["pid"], shim["start_time"], shim["boot_id"]
        ):
            procfs.send(shim["pid"], number)


SECRETS_FILE = "secrets.json"


def take_secrets(folder: str) -> dict[str, str]:
    """Return the variables with their values, and remove the file. Empty if there are none.

    Raises:
        OSError: the file cannot be read or removed.
    """
    path = Path(folder, SECRETS_FILE)
    try:
        found: dict[str, str] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    path.unlink()
    return found
