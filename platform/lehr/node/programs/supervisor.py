"""The supervisor: one rank's process. It starts the program, reads what it logs, records its end.

Rank 0 writes the streams. Files that the program logs into are read four times a second, so a
program never waits for Lehr. Orders and SIGTERM become a stop file and a SIGTERM to the program;
one that does not end within ``stop_grace_s`` is killed. Checkpoints are copied by another process.
After the program's end, the copies that are due are waited for.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from lehr.base import procfs
from lehr.control.error_patterns import exit_reason
from lehr.node import exit_report, subprocesses
from lehr.node.programs.keeper import Keeper
from lehr.node.programs.log_tail import LogTail
from lehr.node.programs.program_dir import ProgramDir, Resume
from lehr.node.programs.recorder import PatientStream, Recorder
from lehr.specs.program import Program
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote, read_orders
from lehr_trainer.contract.records import Finished, Stopping
from lehr_trainer.files import open_regular, write_atomically
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.failures import Failure

_POLL_S = 0.25
_COPIES_S = {"signal": 25.0, "pause": 280.0}
_COPIES_OF_CANCELLED_S = 5.0
"""How long after the program's grace copies may go on, by the reason of the stop: less than until
everything is killed (`torchrun.SUPERVISOR_S`, `reconcile.stop_limits_s`).
"""
_OUTPUT_BYTES = 65_536  # The end of the output in which the error is searched for.
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


class Supervisor:
    def __init__(
        self,
        place: ProgramDir,
        program: Program,
        events: EventStream,
        note: LaunchNote,
        *,
        rank: int,
        resumed: Resume | None,
    ) -> None:
        self._place, self._program, self._note = place, program, note
        self._events = PatientStream(events)
        self._rank, self._resumed = rank, resumed
        secrets = note.record.get("spec", {}).get("secrets") or {}
        self._recorder = Recorder(
            self._events,
            tokens_per_step=program.tokens_per_step,
            resumed_step=resumed.step if resumed else 0,
            secrets=[value for name in secrets if (value := os.environ.get(name))],
            factors=program.factors,
        )
        self._keeper = Keeper(place, program, self._events, self._recorder)
        self._tail = LogTail(place, self._recorder, self._keeper, program.prints)
        self._child: subprocesses.Child | None = None
        self._stopping: str | None = None
        self._kill_at = 0.0
        self._printed = 0  # Bytes of the log before the program's output.

    def run(self) -> int:
        """Run the program to its end; return the exit code of this process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        command = self._place.command(self._program, self._resumed)
        print(f"starting {' '.join(command)}", flush=True)
        environment = self._place.environment(self._program, self._rank, self._resumed)
        self._printed = os.lseek(1, 0, os.SEEK_END)
        if self._tail.output is not None:
            self._tail.output.file.offset = self._printed
        try:
            self._child = subprocesses.start(
                command, environment=environment, folder=str(self._place.folder), output=1
            )
        except OSError as error:
            return self._fail(f"{command[0]} could not be started: {error.strerror}")
        while self._child.poll() is None:
            self._wait()
            self._look()
        self._read(ended=True)
        stopped = self._stopping
        self._wait_for_copies()
        self._read(ended=True)  # What the program saved during a copy.
        self._wait_for_copies()
        return self._end(self._child.returncode or 0, stopped)

    def _wait_for_copies(self) -> None:
        """Let copies go on to their end, within the time that a stop leaves."""
        while self._keeper.busy:
            self._wait()
            self._look()
            if self._stopping and self._stopping not in _COPIES_S:
                # The program has ended, so the rest of its grace serves nobody.
                self._kill_at = min(self._kill_at, time.monotonic())
            limit_s = _COPIES_S.get(self._stopping or "", _COPIES_OF_CANCELLED_S)
            if self._stopping and time.monotonic() > self._kill_at + limit_s:
                self._keeper.give_up()

    def _wait(self) -> None:
        info = signal.sigtimedwait(_SIGNALS, _POLL_S)
        if info is not None and info.si_signo in {signal.SIGTERM, signal.SIGINT}:
            self._stop("signal")

    def _look(self) -> None:
        self._read()
        orders = read_orders(self._place.attempt_dir / layout.ORDERS)
        if orders.desired != "run":
            self._stop("pause" if orders.desired == "pause" else orders.reason or "cancel")
        assert self._child is not None
        alive = self._child.returncode is None
        if alive and self._stopping is not None and time.monotonic() > self._kill_at:
            for pid in [*procfs.children(self._child.pid), self._child.pid]:
                procfs.send(pid, signal.SIGKILL)

    def _read(self, *, ended: bool = False) -> None:
        """Record what the program has logged and saved. No fault in it may stop the program."""
        if self._rank != 0:
            return
        if not self._events.flush() and not ended:
            return  # On the full disk, what it logs waits in its own files.
        try:
            self._tail.read(fully=ended)
            self._keeper.look(self._catch_up, ended=ended)
        except Exception as error:  # noqa: BLE001 - of whatever kind, the program must go on
            traceback.print_exc()
            self._recorder.warn("unreadable_log", f"what it logged cannot be read: {error!r}")

    def _catch_up(self) -> None:
        self._tail.read(fully=True)

    def _stop(self, reason: str) -> None:
        """Ask the program to save and end; kill it later if it does not."""
        if self._stopping is not None:
            return
        self._stopping = reason
        self._kill_at = time.monotonic() + self._program.stop_grace_s
        self._keeper.hurry()
        assert self._child is not None
        if self._child.returncode is not None:
            return  # It has ended, and its last checkpoint is being copied.
        with contextlib.suppress(OSError):  # On a full disk it has SIGTERM alone.
            self._place.stop_file.touch()
        step = self._recorder.step
        self._events.write(Stopping(time=time.time(), step=step, reason=reason))
        procfs.send(self._child.pid, signal.SIGTERM)

    def _end(self, code: int, stopped: str | None) -> int:
        entry = self._program.entry
        attempt_dir = self._place.attempt_dir
        # torchrun stops the others when a rank fails: that is a failure, and no stop.
        if stopped is not None and (stopped != "signal" or not notes(attempt_dir)):
            # As of Lehr's trainer, the record names the reason if everything was saved.
            saved = self._keeper.saved_step >= self._recorder.step
            return self._finish("stopped", None, cause=stopped if saved else None)
        if stopped is None and code == 0:
            output = self._tail.output
            if output is not None and self._rank == 0 and (problem := output.unmatched()):
                self._recorder.warn(output.code, self._recorder.hide(problem))
            elif not self._recorder.count and self._rank == 0:
                self._recorder.warn(
                    "nothing_logged",
                    f"{entry} ended without logging a metric; docs/your-code.md shows four ways",
                )
            return self._finish("completed", None, cause=None)
        own = Failure(self._rank, "error", self._reason(code))
        if stopped is None:
            leave_note(attempt_dir, own)
        first = [*notes(attempt_dir), own][0]
        rank = "" if first.rank == self._rank else f"rank {first.rank}: "
        return self._fail(f"{rank}{first.message}")

    def _fail(self, message: str) -> int:
        with contextlib.suppress(OSError):
            print(f"error: {message}", flush=True)
        return self._finish("failed", message, cause="program_failed")

    def _reason(self, code: int) -> str:
        """Return why the program failed, with the command that prints its output."""
        log = f"lehr logs {self._note.run_id}{f' --rank {self._rank}' if self._rank else ''}"
        return exit_reason(self._program.entry, code, self._output(), log)

    def _output(self) -> str:
        """Return the end of the program's output, without the values of secrets."""
        path = str(layout.rank_log(self._place.attempt_dir, self._rank))
        size = os.lseek(1, 0, os.SEEK_END) - self._printed
        output = exit_report.last_bytes(path, min(size, _OUTPUT_BYTES))
        return self._recorder.hide(output.decode("utf-8", "replace"))

    def _finish(self, outcome: str, message: str | None, *, cause: str | None) -> int:
        self._events.write(
            Finished.model_validate(
                {
                    "time": time.time(),
                    "step": self._recorder.step,
                    "outcome": outcome,
                    "cause": cause,
                    "message": message,
                }
            )
        )
        self._events.finish()
        return int(outcome == "failed")


def leave_note(attempt_dir: Path, failure: Failure) -> None:
    """Leave the failure of this rank to the others: rank 0 reports the first."""
    name = f"failure-rank-{failure.rank}.json"
    with contextlib.suppress(OSError):  # The log has it too.
        write_atomically(attempt_dir / name, json.dumps(asdict(failure)))


def notes(attempt_dir: Path) -> list[Failure]:
    """List the notes, oldest first, so that consequences of another failure come later."""
    found: list[tuple[int, Failure]] = []
    for path in attempt_dir.glob("failure-rank-*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError), open_regular(path) as file:
            found.append((path.stat().st_mtime_ns, Failure(**json.loads(file.read()))))
    return [failure for _, failure in sorted(found, key=lambda pair: pair[0])]
