"""Send runs of processes that Lehr did not start: ``python -m lehr.faces.external FOLDER``.

``lehr_log.init`` starts this beside the process, and ``lehr sync`` does the same later. The process
writes lines into ``log-0.jsonl`` of the folder. They become the records of ``events.jsonl``, which
the shipper sends by offset, as it does for a node. ``position.json`` says which bytes of both
belong together, so this may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from lehr.base import procfs
from lehr.errors import LehrError, ServerUnavailable, UserError
from lehr.faces.client import Client
from lehr.faces.client.submission import provenance
from lehr.node.attempt_dir import AttemptDir
from lehr.node.http_client import Outage, Rejected, ServerConnection
from lehr.node.programs.log_tail import DirectLog
from lehr.node.programs.recorder import Recorder
from lehr.node.shipper import Shipper
from lehr.schemas.runs import ExternalBegun
from lehr_log.run import BEGIN, LOG, POSITION, STOP, label
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.contract.records import Finished, Metrics, Record, Resumed, Started

_LOOK_S = 0.25
_PAUSES_S = (0.5, 30.0)
"""Pauses between tries while the server is away."""
_AFTER_S = 60.0
"""How long after the end of the process to try."""
_SILENT_S = 600.0
"""A process of another machine whose log has not grown for so long has ended."""
_KILLED = "its process ended without a word: it was killed, or its disk was full"


class ExternalAttempt(Shipper):
    """The shipper of an attempt whose process is not Lehr's to stop; its folder must be held."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: dict[str, Any] = procfs.read_json(str(folder / BEGIN))
        launch = {
            "attempt_dir": str(folder),
            "token": self.begun["token"],
            "gang": {"per_node": 1},
            "launched_at_boottime": time.clock_gettime(time.CLOCK_BOOTTIME),
        }
        super().__init__(AttemptDir(str(folder)), launch)
        self._connected = False
        self._resumes = bool(self.begun["resume"])
        self._batch: list[Record] = []
        self._tokens_per_step = self.begun["spec"]["trainer"]["tokens_per_step"]
        self._recorder = Recorder(self, tokens_per_step=self._tokens_per_step)
        self._log = DirectLog(folder / LOG, self._recorder)
        position = procfs.read_json(str(folder / POSITION)) or {"log": 0, "events": 0}
        end, self._size = int(position["log"]), int(position["events"])
        # The lines that are converted already bring the recorder to where it was.
        with contextlib.redirect_stdout(io.StringIO()):
            while (lines := self._log.file.piece(end)) is not None:
                self._log.take(lines)
        self._batch = [] if self._size else [self._started()]
        with contextlib.suppress(FileNotFoundError):
            os.truncate(folder / EVENTS, self._size)

    def write(self, record: Record) -> None:
        """Take a record of the recorder."""
        if self._resumes and isinstance(record, Metrics):
            self._resumes = False
            step = max(0, record.step - 1)
            self._batch.append(Resumed(time=record.time, step=step, checkpoint=""))
        self._batch.append(record)

    def request_stop(self, stop_level: str, reason: str) -> None:  # noqa: ARG002 - of the shipper
        (self.folder / STOP).touch()

    def _started(self) -> Started:
        return Started(
            time=self.begun["started_at"],
            device="unknown",
            tokens_per_step=self._tokens_per_step,
            total_steps=self.begun["spec"]["trainer"]["steps"] or 0,
            versions={"python": platform.python_version()},
            host={"hostname": platform.node(), "command": self.begun["command"]},
        )

    def convert(self) -> bool:
        """Put new lines of the log into the events, on disk; return whether the run has ended.

        Raises:
            OSError: the disk is full. Nothing is lost; try again.
        """
        if self.entry.exit() is not None:
            return True
        # Looked up first: what it wrote before it ended is then read below.
        alive = self._lives()
        self._commit()
        while (lines := self._log.file.piece()) is not None:
            self._log.take(lines)
            self._commit()
        if self._log.end is None and alive:
            return False
        end = self._log.end or {"outcome": "failed", "reason": _KILLED, "time": time.time()}
        failed = end["outcome"] == "failed"
        self._batch.append(
            Finished(
                time=end["time"],
                step=self._recorder.step,
                outcome=end["outcome"],
                cause="program_failed" if failed else None,
                message=end.get("reason"),
            )
        )
        self._commit()
        code = int(end["outcome"] != "completed")
        report = {"code": code, "reason": "", "ended_at": end["time"]}
        procfs.write_json(self.entry.file("exit.json"), report, durable=True)
        return True

    def _commit(self) -> None:
        """Write the batch; it is kept until it is on disk."""
        if not self._batch:
            return
        lines = b"".join(record.model_dump_json().encode() + b"\n" for record in self._batch)
        with (self.folder / EVENTS).open("ab") as file:
            file.truncate(self._size)  # What a full disk has cut.
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        size = self._size + len(lines)
        position = {"log": self._log.file.position, "events": size, "step": self._recorder.step}
        procfs.write_json(str(self.folder / POSITION), position, durable=True)
        self._size = size
        self._batch.clear()

    def _lives(self) -> bool:
        """Return whether its process may still log."""
        process = self.begun
        if process.get("boot_id") == procfs.boot_id():
            return procfs.start_time(process["pid"]) == int(process["start_time"])
        log = self.folder / LOG
        return log.exists() and time.time() - log.stat().st_mtime < _SILENT_S

    def work(self) -> bool:
        """Send what is new; return whether everything of an ended run is delivered.

        Raises:
            LehrError: no server is known, or it refuses the run.
            Outage: it cannot be reached now.
        """
        try:
            if not self._connected:
                self._connect()
            done = super().work()
        except Outage as outage:
            # It may come back at another address, or from a backup that lacks the attempt.
            self.offsets, self._connected = None, False
            if isinstance(outage, Rejected):
                Path(self.entry.file("launch.json")).unlink(missing_ok=True)
            raise
        if done:
            self._gather()  # Only now is it known what the run has logged.
            procfs.write_atomically(self.entry.file("delivered"), b"")
        return done

    def _connect(self) -> None:
        with Client() as client:
            launch = self.entry.launch() or self._announce(client)
            server = client.server
        self._gather()
        self.server = ServerConnection(lambda: server, self.begun["token"], launch["attempt_id"])
        self._connected = True

    def _gather(self) -> None:
        if group := self.begun.get("group"):
            with Client() as client:
                gather(client, [self.begun["spec"]["project"], group], group, [_run_id(self.entry)])

    def _announce(self, client: Client) -> dict[str, Any]:
        """Record the run; a repeated call is the same attempt."""
        known = procfs.read_json(str(self.folder / "provenance.json")) or {}
        body = {name: self.begun[name] for name in ("id", "resume", "started_at", "spec")}
        body["token_sha256"] = sha256(self.begun["token"].encode()).hexdigest()
        body["provenance"] = {**known, "command": self.begun["command"]}
        begun = ExternalBegun.model_validate_json(client.transport.post("/runs/external", body))
        if begun.run_id != self.begun["id"]:
            _say(f"the id {self.begun['id']} is in use: the run is {begun.run_id}")
        launch = {"attempt_id": begun.attempt_id}
        procfs.write_json(self.entry.file("launch.json"), launch, durable=True)
        return launch

    def drain(self) -> str:
        """Convert and send all that is there; return what became of it, in words.

        Raises:
            LehrError: the server cannot be reached, or refuses the run.
        """
        with contextlib.redirect_stdout(sys.stderr):
            ended = self.convert()
        try:
            while not self.work() and ended:
                time.sleep(_LOOK_S)
        except Outage as outage:
            raise ServerUnavailable(f"{self.folder}: {outage}.") from outage
        return "sent" if ended else "sent so far; its process still runs"

    def follow(self, *, offline: bool) -> None:
        """Convert and send until the process has ended and everything is delivered, or the server
        was away for a minute then, or the folder has gone. Print one line for each kind of trouble.
        """
        with contextlib.suppress(OSError):
            procfs.write_json(str(self.folder / "provenance.json"), provenance())
        kinds: set[type[Exception]] = set()
        pause, next_try, give_up = _PAUSES_S[0], 0.0, math.inf
        while time.monotonic() < give_up and self.folder.is_dir():
            try:
                if math.isinf(give_up) and self.convert():
                    give_up = time.monotonic() + _AFTER_S * (not offline)
                    next_try = 0.0
                if not offline and time.monotonic() >= next_try:
                    if self.work():
                        return
                    pause = _PAUSES_S[0]
            except (Outage, LehrError, OSError) as error:
                next_try = time.monotonic() + pause
                pause = min(2 * pause, _PAUSES_S[1] if math.isinf(give_up) else 2.0)
                if type(error) not in kinds:
                    kinds.add(type(error))
                    why = error.message if isinstance(error, LehrError) else str(error)
                    _say(f"{why.rstrip('.')}. The run is kept; later: lehr sync {self.folder}")
            time.sleep(_LOOK_S)


def gather(client: Client, key: list[str], name: str, ids: list[str], metric: Any = None) -> None:
    """Make runs a sweep, or add them to the one of the same ``key``."""
    sweep_id = "g" + sha256(json.dumps(key).encode()).hexdigest()[:15]
    group = {"id": sweep_id, "name": label(name, "group"), "run_ids": ids, "metric": metric}
    client.transport.put("/runs/external/group", group)


def _say(text: str) -> None:
    print(f"lehr_log: {text}", file=sys.stderr, flush=True)


def _run_id(entry: AttemptDir) -> str:
    own = Path(entry.path).parent.name
    return str((entry.launch() or {}).get("attempt_id", own)).split("-")[0]


def sync(folder: Path) -> Iterator[dict[str, str]]:
    """Send what is left of all runs below a folder; yield each attempt, and what became of it.

    Raises:
        UserError: there is no run.
        LehrError: the server cannot be reached, or refuses one of them.
    """
    files = (path for path in folder.glob(f"**/{BEGIN}") if procfs.read_json(str(path)))
    paths = [path.parent.absolute() for path in files]
    if not paths:
        raise UserError(
            f"{folder} has no run that lehr_log.init has begun.",
            hint="Name the folder that it printed, or one above it.",
        )
    for path in sorted(paths, key=lambda path: (path.parent, len(path.name), path.name)):
        entry = AttemptDir(str(path))
        lock = entry.hold()
        try:
            if entry.delivered:
                result = "sent before"
            elif lock is None:
                result = "its own process sends it"
            else:
                result = ExternalAttempt(path).drain()
        finally:
            if lock is not None:
                os.close(lock)
        yield {"folder": str(path), "run_id": _run_id(entry), "result": result}


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    if AttemptDir(str(folder)).hold() is None:
        sys.exit(f"lehr_log: {folder} is being sent by another process")
    ExternalAttempt(folder).follow(offline=os.environ.get("LEHR_MODE") == "offline")


if __name__ == "__main__":
    main()
