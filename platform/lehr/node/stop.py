"""Stop every training of this home on this machine: they save, then end.

Only attempts whose shim lives and is recorded in this home are touched, each shim by pid, start
time and boot id.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from lehr.base import home
from lehr.node.attempt_dir import AttemptDir

DRAINING = "draining"
"""File in an agent's folder while its node is drained. The agent reports it, and gets no runs."""
_KILL_TIMEOUT_S = 30.0
_POLL_S = 0.1


class End(StrEnum):
    SAVED = "saved"  # It saved, or had nothing to save. It is to resume.
    UNSAVED = "unsaved"
    """It ended in time without a report that it saved, as programs of users do. It is to resume."""
    OVER = "over"
    """It completed or failed, or it stopped for an order: a pause, a cancellation, a limit."""
    KILLED = "killed"  # It did not end in time. It is to resume.


@dataclass(frozen=True)
class StoppedTrainings:
    ends: dict[str, End] = field(default_factory=dict)  # How each ended, by attempt.
    uncopied: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    """By place, how many checkpoints are not there yet (at least), and why, where that is known."""

    @property
    def counts(self) -> dict[str, int]:
        """Return how many ended in each way: all of ``End``, in that order."""
        found = Counter(self.ends.values())
        return {end.value: found[end] for end in End}

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(attempt.rpartition("-")[0] for attempt in self.ends))


def count_trainings(where: Path) -> int:
    """How many trainings of the home ``where`` run on this machine."""
    return sum(entry.exit() is None for entry in _live(where))


def stop_all(
    where: Path, *, command: str, timeout_s: float, deliver_s: float = 0.0
) -> StoppedTrainings:
    """Stop the trainings of the home ``where``, and have what they saved copied.

    The reason of their end names ``command``. They may save for ``timeout_s`` and are then killed;
    their copies may take as long again. Their streams have ``deliver_s`` to reach the server; with
    0 the next server of this home has them delivered.
    """
    entries = _live(where)
    training = [entry for entry in entries if entry.exit() is None]
    for entry in training:
        entry.note_command(command)
        entry.signal_shim(signal.SIGTERM)
    ends: dict[str, End] = {}
    late = _wait(training, timeout_s, ends)
    for entry in late:
        entry.request_stop("kill", f"{command}: it did not save in time")
        entry.signal_shim(signal.SIGUSR1)
    ends |= dict.fromkeys((entry.attempt_id for entry in late), End.KILLED)
    _wait(late, _KILL_TIMEOUT_S, {})
    uncopied = _finish_copies(entries, timeout_s)
    if deliver_s:
        _until(lambda: not any(entry.held() for entry in entries), deliver_s)
    # What is left of a shim now only waits to deliver; the next server has that done again.
    for entry in entries:
        entry.signal_shim(signal.SIGKILL)
    return StoppedTrainings(
        {entry.attempt_id: ends.get(entry.attempt_id, End.UNSAVED) for entry in training}, uncopied
    )


def _end(report: dict[str, Any]) -> End:
    """Return how a training ended that was not killed, by its exit report."""
    finished = report.get("finished")
    if not isinstance(finished, dict):
        return End.UNSAVED
    stopped, cause = finished.get("outcome") == "stopped", finished.get("cause")
    if stopped and cause == "signal":
        return End.SAVED
    # A program of a user names no cause; its shim knows whether a signal or an order ended it.
    if stopped and cause is None and report.get("reason") == "terminated":
        return End.UNSAVED
    return End.OVER


def _live(where: Path) -> list[AttemptDir]:
    folders = [path for path in home.node_dir(where).glob("*/attempts/*") if path.is_dir()]
    return [entry for entry in (AttemptDir(str(path)) for path in folders) if entry.held()]


def _finish_copies(entries: list[AttemptDir], within_s: float) -> dict[str, tuple[int, str | None]]:
    """Wait until what was saved just now is copied, if the spec requests copies.

    A storage that fails is not waited for: the machine may be given back soon.
    """
    copied = [entry for entry in entries if (entry.launch() or {}).get("upload")]

    def is_over(entry: AttemptDir) -> bool:
        known = entry.copying()
        over = known is not None and (known[0] == 0 or known[1] is not None)
        return over or not entry.held()

    _until(lambda: all(map(is_over, copied)), within_s)
    uncopied: dict[str, tuple[int, str | None]] = {}
    for entry in copied:
        waiting, error = entry.copying() or (1, None)
        if waiting:
            place = str((entry.launch() or {}).get("upload"))
            before, why = uncopied.get(place, (0, None))
            uncopied[place] = (before + waiting, why or error)
    return uncopied


def _until(over: Callable[[], bool], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while not over():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _wait(entries: list[AttemptDir], within_s: float, ends: dict[str, End]) -> list[AttemptDir]:
    """Return those that have not ended in time; add to ``ends`` how the others did.

    Each exit is read as soon as it is there: the agent removes the folder of an attempt that is
    delivered.
    """

    def left() -> list[AttemptDir]:
        for entry in entries:
            if entry.attempt_id not in ends and (report := entry.exit()) is not None:
                ends[entry.attempt_id] = _end(report)
        return [entry for entry in entries if entry.attempt_id not in ends and entry.held()]

    return [] if _until(lambda: not left(), within_s) else left()
