"""Send runs of processes that Lehr did not start: ``python -m lehr.faces.external FOLDER``.

``lehr_log.init`` starts this beside the process, and ``lehr sync`` does the same later. The process
writes lines into ``log-0.jsonl`` of the folder. They become the records of ``events.jsonl``, which
are sent by offset, as a node sends those of an attempt. ``position.json`` says which bytes of both
belong together, so this may be killed at any moment.
"""

from __future__ import annotations

import contextlib
import io
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
from lehr_log.run import BEGIN, LOG, POSITION, STOP
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.contract.records import Finished, Metrics, Record, Resumed, Started

_LOOK_S = 0.25
_PAUSES_S = (0.5, 30.0)
"""Pauses between tries while the server is away."""
_AFTER_S = 60.0
"""How long after the end of the process to try."""
_SILENT_S = 600.0
"""A process of another machine whose log has not grown for so long has ended."""
_LAUNCH, _EXIT = "launch.json", "exit.json"


class EntrySender(Shipper):
    """The shipper of an attempt whose process is not Lehr's to stop."""

    def request_stop(self, stop_level: str, reason: str) -> None:  # noqa: ARG002 - of the shipper
        Path(self.attempt_dir, STOP).touch()


class ExternalAttempt:
    def __init__(self, folder: Path) -> None:
        """Open the folder of an attempt, and go on where it was left.

        Raises:
            UserError: it is none.
        """
        self.folder = folder.absolute()
        begun = procfs.read_json(str(folder / BEGIN))
        if not isinstance(begun, dict):
            raise UserError(
                f"{folder} is no folder of a run: it has no {BEGIN}.",
                hint="Name the folder that lehr_log.init printed, or one above it.",
            )
        self.begun: dict[str, Any] = begun
        self.entry = AttemptDir(str(self.folder))
        self._batch: list[Record] = []
        self._unwritten = b""
        self._resumes = bool(begun["resume"])
        self._sender: EntrySender | None = None
        self._program = begun["spec"]["trainer"]
        self._recorder = Recorder(self, tokens_per_step=self._program["tokens_per_step"])
        self._log = DirectLog(self.folder / LOG, self._recorder)
        position = procfs.read_json(str(self.folder / POSITION)) or {"log": 0, "events": 0}
        self._size = int(position["events"])
        self._read_before(int(position["log"]))

    @property
    def run_id(self) -> str:
        return str((self.entry.launch() or {}).get("attempt_id", self.begun["id"])).split("-")[0]

    def write(self, record: Record) -> None:
        """Take a record of the recorder."""
        if self._resumes and isinstance(record, Metrics):
            self._resumes = False
            step = max(0, record.step - 1)
            self._batch.append(Resumed(time=record.time, step=step, checkpoint=""))
        self._batch.append(record)

    def _read_before(self, end: int) -> None:
        """Bring the recorder to where it was, from the lines that are converted already."""
        with contextlib.redirect_stdout(io.StringIO()):
            while self._log.position < end:
                if not self._log.read_piece(end - self._log.position):
                    break
        if end:
            self._batch.clear()
        elif not self._size:
            self._batch.append(self._started())
        if self._size:
            os.truncate(self.folder / EVENTS, self._size)

    def _started(self) -> Started:
        return Started(
            time=self.begun["started_at"],
            device="unknown",
            tokens_per_step=self._program["tokens_per_step"],
            total_steps=self._program["steps"] or 0,
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
        more = True
        while more:
            if not self._unwritten:
                more = self._log.read_piece()
                self._take_batch()
            self._commit()
        if self._log.end is None and alive:
            return False
        end = self._log.end or {
            "outcome": "failed",
            "reason": "its process ended without a word: it was killed, or its disk was full",
        }
        self._batch.append(
            Finished.model_validate(
                {
                    "time": end.get("time", time.time()),
                    "step": self._recorder.step,
                    "outcome": end["outcome"],
                    "cause": "program_failed" if end["outcome"] == "failed" else None,
                    "message": end.get("reason"),
                }
            )
        )
        self._take_batch()
        self._commit()
        code = 0 if end["outcome"] == "completed" else 1
        report = {"code": code, "reason": "", "ended_at": end.get("time", time.time())}
        procfs.write_json(str(self.folder / _EXIT), report, durable=True)
        return True

    def _take_batch(self) -> None:
        self._unwritten = b"".join(
            record.model_dump_json().encode() + b"\n" for record in self._batch
        )
        self._batch.clear()

    def _commit(self) -> None:
        if not self._unwritten:
            return
        with (self.folder / EVENTS).open("ab") as file:
            file.truncate(self._size)  # What a full disk has cut.
            file.write(self._unwritten)
            file.flush()
            os.fsync(file.fileno())
        size = self._size + len(self._unwritten)
        position = {"log": self._log.position, "events": size, "step": self._recorder.step}
        procfs.write_json(str(self.folder / POSITION), position, durable=True)
        self._size, self._unwritten = size, b""

    def _lives(self) -> bool:
        """Return whether its process may still log."""
        process = self.begun
        if process.get("boot_id") == procfs.boot_id():
            return procfs.start_time(process["pid"]) == int(process["start_time"])
        log = self.folder / LOG
        return log.exists() and time.time() - log.stat().st_mtime < _SILENT_S

    def send(self) -> bool:
        """Send what is new; return whether everything of an ended run is delivered.

        Raises:
            LehrError: no server is known, or it refuses the run.
            Outage: it cannot be reached now.
        """
        try:
            self._sender = self._sender or self._begin()
            done = self._sender.work()
        except Outage as outage:
            # It may come back at another address, or from a backup that lacks the attempt.
            self._sender = None
            if isinstance(outage, Rejected):
                (self.folder / _LAUNCH).unlink(missing_ok=True)
            raise
        if done:
            procfs.write_atomically(self.entry.file("delivered"), b"")
        return done

    def drain(self) -> str:
        """Convert and send all that is there; return what became of it, in words.

        Raises:
            LehrError: the server cannot be reached, or refuses the run.
        """
        with contextlib.redirect_stdout(sys.stderr):
            ended = self.convert()
        try:
            while not self.send() and ended:
                time.sleep(_LOOK_S)
        except Outage as outage:
            raise ServerUnavailable(f"{self.folder}: {outage}.") from outage
        return "sent" if ended else "sent so far; its process still runs"

    def _begin(self) -> EntrySender:
        launch = self.entry.launch()
        with Client() as client:
            if launch is None:
                launch = self._announce(client)
            server = client.server
        sender = EntrySender(self.entry, launch)
        sender.server = ServerConnection(lambda: server, launch["token"], launch["attempt_id"])
        return sender

    def _announce(self, client: Client) -> dict[str, Any]:
        known = procfs.read_json(str(self.folder / "provenance.json")) or {}
        body = {name: self.begun[name] for name in ("id", "resume", "started_at", "spec")}
        body["token_sha256"] = sha256(self.begun["token"].encode()).hexdigest()
        body["provenance"] = {**known, "command": self.begun["command"]}
        begun = ExternalBegun.model_validate_json(client.transport.post("/runs/external", body))
        if begun.run_id != self.begun["id"]:
            self.say(f"the id {self.begun['id']} is in use: the run is {begun.run_id}")
        launch = {
            "attempt_id": begun.attempt_id,
            "attempt_dir": str(self.folder),
            "token": self.begun["token"],
            "gang": {"per_node": 1},
            "launched_at_boottime": time.clock_gettime(time.CLOCK_BOOTTIME),
        }
        procfs.write_json(str(self.folder / _LAUNCH), launch, mode=0o600, durable=True)
        return launch

    def say(self, text: str) -> None:
        print(f"lehr_log: {text}", file=sys.stderr, flush=True)

    def follow(self, *, offline: bool) -> None:
        """Convert and send until the process has ended and everything is delivered, or the server
        was away for a minute then. Print one line for each kind of trouble.
        """
        with contextlib.suppress(OSError):
            procfs.write_json(str(self.folder / "provenance.json"), provenance())
        told: set[type[Exception]] = set()
        pause, next_try, give_up = _PAUSES_S[0], 0.0, math.inf
        ended = False
        while time.monotonic() < give_up:
            try:
                ended = ended or self.convert()
                if ended and (offline or math.isinf(give_up)):
                    give_up = time.monotonic() + _AFTER_S * (not offline)
                    next_try = 0.0
                if not offline and time.monotonic() >= next_try:
                    if self.send():
                        return
                    pause = _PAUSES_S[0]
            except (Outage, LehrError, OSError) as error:
                next_try = time.monotonic() + pause
                pause = min(2 * pause, _PAUSES_S[1] if not ended else 2.0)
                if type(error) not in told:
                    told.add(type(error))
                    why = error.message if isinstance(error, LehrError) else str(error)
                    self.say(f"{why.rstrip('.')}. The run is kept; later: lehr sync {self.folder}")
            time.sleep(_LOOK_S)


def sync(folder: Path) -> Iterator[tuple[ExternalAttempt, str]]:
    """Send what is left of all runs below a folder; yield each attempt, and what became of it.

    Raises:
        UserError: there is no run.
        LehrError: the server cannot be reached, or refuses one of them.
    """
    found = (
        [folder]
        if (folder / BEGIN).is_file()
        else sorted((path.parent for path in folder.glob(f"**/attempt-*/{BEGIN}")), key=_order)
    )
    if not found:
        raise UserError(
            f"{folder} has no run that lehr_log.init has begun.",
            hint="Name the folder that it printed, or one above it.",
        )
    for path in found:
        attempt = ExternalAttempt(path)
        if attempt.entry.delivered:
            yield attempt, "sent before"
            continue
        lock = attempt.entry.hold()
        if lock is None:
            yield attempt, "its own process sends it"
            continue
        try:
            yield attempt, attempt.drain()
        finally:
            os.close(lock)


def _order(path: Path) -> tuple[str, int]:
    return str(path.parent), int(path.name.rpartition("-")[2])


def main() -> None:
    attempt = ExternalAttempt(Path(sys.argv[1]))
    if attempt.entry.hold() is None:
        sys.exit(f"lehr_log: {attempt.folder} is being sent by another process")
    os.nice(5)
    attempt.follow(offline=os.environ.get("LEHR_MODE") == "offline")


if __name__ == "__main__":
    main()
