"""The uploader: copies an attempt's checkpoints to the storage named in its spec.

Run as ``python -I uploader.py ENTRY`` by the shim of the node that writes them, and restarted
whenever it ends early. It keeps no state: the manifests in the storage show which copies exist. So
it may be killed at any moment, and it never touches the training. Its errors are reported to the
server, shown, and retried.

The newest checkpoint goes first, in case copying is slower than saving. A checkpoint is held open
while it is copied, so that retention may remove it. The server has the list of forks, so it decides
which copies to remove.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from lehr.base import procfs
from lehr.node.attempt_dir import AttemptDir
from lehr.node.http_client import Outage, Rejected, ServerConnection
from lehr_trainer.contract import layout

LOOK_S = 0.5
BACKOFF_S = (1.0, 60.0)
TIMEOUT_S = 3600.0  # Limit after the training's end; checkpoints not copied by then are given up.
TELL_AGAIN_S = 5.0  # Pause while the server does not know of a checkpoint yet.


class Uploader:
    def __init__(self, entry: AttemptDir, launch: dict[str, Any]) -> None:
        self.entry = entry
        self.place = str(launch["upload"])
        self.run_dir = Path(launch["run_dir"])
        self.attempt_dir = Path(launch["attempt_dir"])
        self.server = ServerConnection(
            lambda: entry.server_url(launch), str(launch["token"]), entry.attempt_id
        )
        self.parent = os.getppid()
        self.states: dict[str, dict[str, Any]] = {}  # Reports to send, by the checkpoint's path.
        self.versions: dict[str, tuple[int, int] | None] = {}
        """What was copied last, by the checkpoint's path: a program may replace one."""
        self.unreported: set[str] = set()
        self.told_at = 0.0
        self.pause = 0.0
        self.ended_at: float | None = None
        self.progress: dict[str, Any] = {}

    def run(self) -> None:
        while os.getppid() == self.parent:
            if self.round():
                procfs.write_atomically(self.entry.file("uploaded"), b"")
                return
            signal.sigtimedwait({signal.SIGUSR1}, self.pause or LOOK_S)

    def round(self) -> bool:
        """Copy one checkpoint, if one waits; report to the server; return whether all is done."""
        ended = self.entry.exit() is not None
        if ended and self.ended_at is None:
            self.ended_at = time.monotonic()
        waiting = self.waiting()
        if waiting:
            self.copy(waiting[-1])
            waiting = self.waiting()
        if waiting and self.overdue():
            for folder in waiting:
                self.note(folder, "failed", self.states.get(self.name(folder), {}).get("error"))
            waiting = []
        self.note_progress(len(waiting), ended=ended)
        all_reported = self.report()
        return ended and not waiting and (all_reported or self.overdue())

    def note_progress(self, waiting: int, *, ended: bool) -> None:
        """Record which checkpoints are not copied yet, for ``lehr down``."""
        errors = [one["error"] for one in self.states.values() if one["internal"] == "uploading"]
        progress = {"waiting": waiting, "ended": ended, "error": next(filter(None, errors), None)}
        if progress != self.progress:
            procfs.write_json(self.entry.file("copying.json"), progress)
            self.progress = progress

    def overdue(self) -> bool:
        return self.ended_at is not None and time.monotonic() - self.ended_at > TIMEOUT_S

    def waiting(self) -> list[Path]:
        """Return checkpoints of this attempt without a copy, oldest first."""
        done = {"there", "removed", "damaged"}
        return [
            folder
            for folder in layout.checkpoints(self.attempt_dir)
            if self.states.get(self.name(folder), {}).get("internal") not in done
            or self.versions.get(self.name(folder)) not in {None, self.version(folder)}
        ]

    @staticmethod
    def version(folder: Path) -> tuple[int, int] | None:
        """Return what identifies the folder's manifest; None if it is gone."""
        try:
            status = (folder / layout.MANIFEST).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def name(self, folder: Path) -> str:
        return str(folder.relative_to(self.run_dir))

    def url(self, path: str) -> str:
        return f"{self.place}/{self.run_dir.name}/{path}"

    # ----------------------------------------------------------------------------- copying

    def copy(self, folder: Path) -> None:
        # Imported late: a training that saves nothing does not wait for fsspec's clients.
        from lehr.checkpoints.copies import Copy, Folder
        from lehr.specs.storage_url import short
        from lehr_trainer.errors import BadCheckpoint

        # Before it is opened: one that is replaced now is copied again.
        self.versions[self.name(folder)] = self.version(folder)
        try:
            held = Folder(folder)
        except BadCheckpoint as error:
            if folder.exists():
                self.note(folder, "failed", str(error), internal="damaged")
            return  # Otherwise retention has removed it.
        began = time.monotonic()
        try:
            copy = Copy(self.url(self.name(folder)))
            known = copy.known()
            if known is None or known.digest != held.known.digest:
                if self.states.get(self.name(folder), {}).get("state") != "uploading":
                    self.note(folder, "uploading")
                    self.report()
                copy.write(held)
        except BadCheckpoint as error:
            self.note(folder, "failed", str(error), internal="damaged")
        except Exception as error:  # noqa: BLE001 - whatever a storage's client raises, it is tried again
            self.pause = min(max(self.pause * 2, BACKOFF_S[0]), BACKOFF_S[1])
            self.pause *= random.uniform(0.75, 1.0)  # noqa: S311 - jitter
            self.note(folder, "uploading", short(error))
            self.log(f"{self.name(folder)}: {short(error)}; again in {self.pause:.1f} s")
        else:
            self.pause = 0.0
            self.note(folder, "there")
            self.log(f"{self.name(folder)}: copied in {time.monotonic() - began:.1f} s")
        finally:
            held.close()

    def remove(self, path: str) -> None:
        from lehr.checkpoints.copies import Copy
        from lehr.specs.storage_url import short

        try:
            Copy(self.url(path)).remove()
        except Exception as error:  # noqa: BLE001 - as above; the server asks again
            self.log(f"{path}: its copy cannot be removed: {short(error)}")
            return
        self.set(path, "removed", None, "removed")

    # --- reports -----------------------------------------------------------------------------

    def note(self, folder: Path, state: str, error: str | None = None, internal: str = "") -> None:
        self.set(self.name(folder), state, error, internal or state)

    def set(self, path: str, state: str, error: str | None, internal: str) -> None:
        new = {"state": state, "error": error, "internal": internal}
        if self.states.get(path) != new:
            self.states[path] = new
            self.unreported.add(path)

    def report(self) -> bool:
        """Report to the server and remove the copies it names. Return whether nothing is left to
        report.
        """
        if not self.unreported:
            return True
        fresh = any(self.states[path]["state"] != "uploading" for path in self.unreported)
        if not fresh and time.monotonic() - self.told_at < TELL_AGAIN_S:
            return False
        reports = [
            {
                "path": path,
                "url": self.url(path),
                "state": self.states[path]["state"],
                "error": self.states[path]["error"],
            }
            for path in sorted(self.unreported)
        ]
        self.told_at = time.monotonic()
        try:
            answer = self.server.post("copies", {"copies": reports}).must(200, 404)
            reply = answer.json()
        except Outage as outage:
            self.log(str(outage))
            if isinstance(outage, Rejected) and self.entry.delivered:
                self.unreported.clear()  # The shipper has given up, too.
            return not self.unreported
        if answer.status != 200:
            self.unreported.clear()  # The run was deleted: there is nobody to report to.
            return True
        self.unreported = set(reply["unknown"])
        for path in reply["remove"]:
            self.remove(path)
        return not self.unreported

    @staticmethod
    def log(line: str) -> None:
        procfs.log(f"{time.time():.0f} uploader: {line}")


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    os.nice(5)
    entry = AttemptDir(sys.argv[1])
    launch = entry.launch()
    if launch is None or not launch.get("upload"):
        sys.exit(f"{entry.path}: nothing to upload")
    Uploader(entry, launch).run()


if __name__ == "__main__":
    main()
