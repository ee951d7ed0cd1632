"""Stop what ``lehr up`` started (server, trainings, Ray), so that none restarts another.

Stops only processes recorded in this home, identified by pid and start time. Another Ray on the
machine, other homes, and trainings on a cluster that Lehr only joined continue.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lehr import home
from lehr.cli.daemon import forget, one_at_a_time, running_server
from lehr.cli.processes import stop
from lehr.cluster import ray_head
from lehr.errors import Conflict
from lehr.node import procfs
from lehr.node.attempt_dir import AttemptDir

SERVER_TIMEOUT_S = 20.0


@dataclass
class ShutdownReport:
    stopped: list[str] = field(default_factory=list)
    saved: int = 0
    """Trainings that ended when asked: they had saved, or had nothing to save."""
    killed: int = 0
    kept: int = 0
    uncopied: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """By location: how many checkpoints are not copied yet (at least), and why, if known."""

    @property
    def anything(self) -> bool:
        return bool(self.stopped or self.saved or self.killed or self.kept)


def take_down(where: Path, *, keep_runs: bool, timeout_s: float) -> ShutdownReport:
    """Stop all; skip what is not running.

    Raises:
        Conflict: the server was not started by ``lehr up``.
    """
    report = ShutdownReport()
    if not where.is_dir():
        return report
    with one_at_a_time(where):
        _take_down(where, report, keep_runs=keep_runs, timeout_s=timeout_s)
    return report


def _take_down(where: Path, report: ShutdownReport, *, keep_runs: bool, timeout_s: float) -> None:
    server = running_server(where)
    if server is not None and server.options is None:
        raise Conflict(
            f"the server, process {server.process.pid}, was not started by lehr up.",
            hint="Stop it as it was started, e.g. systemctl stop lehr. Then lehr down stops the "
            "trainings and Ray that it left running.",
        )
    if server is not None:
        killed = stop(server.process, timeout_s=SERVER_TIMEOUT_S)
        report.stopped.append(
            "the server (killed: it did not end by itself)" if killed else "the server"
        )
    forget(where)
    if ray_head.recorded(where) is not None:
        # Only trainings on Lehr's own Ray belong to this machine.
        entries = _live(where)
        if keep_runs:
            report.kept = sum(entry.exit() is None for entry in entries)
        else:
            _end_trainings(entries, timeout_s, report)
        if ray_head.stop(where):
            report.stopped.append("Ray")


def _live(where: Path) -> list[AttemptDir]:
    """Return attempts of this home that a shim watches."""
    folders = [path for path in home.node_dir(where).glob("*/attempts/*") if path.is_dir()]
    return [entry for entry in (AttemptDir(str(path)) for path in folders) if entry.held()]


def _end_trainings(entries: list[AttemptDir], timeout_s: float, report: ShutdownReport) -> None:
    training = [entry for entry in entries if entry.exit() is None]
    for entry in training:
        _signal_shim(entry, signal.SIGTERM)
    left = _wait(training, timeout_s)
    for entry in left:
        entry.request_stop("kill", "lehr down: it did not save in time")
        _signal_shim(entry, signal.SIGUSR1)
    _wait(left, 30.0)
    report.killed = len(left)
    report.saved = len(training) - len(left)
    _finish_copies(entries, timeout_s, report)
    # The remaining shims only wait to deliver their streams. The next server continues that.
    for entry in entries:
        _signal_shim(entry, signal.SIGKILL)


def _finish_copies(entries: list[AttemptDir], within_s: float, report: ShutdownReport) -> None:
    """Finish copies of checkpoints that were just saved, except to a location that fails.

    The machine may be handed back after ``lehr down``.
    """
    copied = [entry for entry in entries if (entry.launch() or {}).get("upload")]

    def is_over(entry: AttemptDir) -> bool:
        known = entry.copying()
        over = known is not None and (known[0] == 0 or known[1] is not None)
        return over or not entry.held()

    _until(lambda: all(map(is_over, copied)), within_s)
    for entry in copied:
        waiting, error = entry.copying() or (1, None)
        if waiting:
            place = str((entry.launch() or {}).get("upload"))
            before, why = report.uncopied.get(place, (0, None))
            report.uncopied[place] = (before + waiting, why or error)


def _until(over: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not over():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _wait(entries: list[AttemptDir], within_s: float) -> list[AttemptDir]:
    """Return the processes that have not ended in time."""

    def left() -> list[AttemptDir]:
        return [entry for entry in entries if entry.exit() is None and entry.held()]

    return [] if _until(lambda: not left(), within_s) else left()


def _signal_shim(entry: AttemptDir, number: signal.Signals) -> None:
    shim = procfs.read_json(entry.file("shim.json"))
    if isinstance(shim, dict) and procfs.is_same(shim["pid"], shim["start_time"], shim["boot_id"]):
        procfs.send(shim["pid"], number)
