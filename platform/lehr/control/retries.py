"""Classify why an attempt ended, and which budget pays for another try.

There are three budgets: user code, infrastructure, preemption. Failures that would only repeat (out
of memory, a bad config, bad data, NaN) have none.

The trainer's own ``finished`` record decides first. If it is missing, or names no more than
"error", the last lines of the output are searched: torch, NCCL and the driver report causes only as
text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lehr.base.formats import signal_name
from lehr.control.error_patterns import PATTERNS, Budget, lacks_space, raised
from lehr.control.lifecycle import Desired

SPENT: Final[Mapping[Budget, str]] = {
    Budget.USER: "user_failures",
    Budget.INFRASTRUCTURE: "infrastructure_failures",
    Budget.PREEMPTION: "preemptions",
}
"""The field of a run that counts what was spent of each budget."""
HEALED_BY_PROGRESS: Final = frozenset({SPENT[Budget.INFRASTRUCTURE], SPENT[Budget.PREEMPTION]})
"""Counters that start again from 0 when an attempt has saved a newer checkpoint. So a long run can
finish on unreliable machines, as long as each attempt makes progress.
"""
RETRY_RESET: Final[Mapping[str, Any]] = {
    "desired": Desired.RUN.value,
    **dict.fromkeys(SPENT.values(), 0),
}
"""Changes of a failed run that a person queues again: its budgets are full again."""


@dataclass(frozen=True, slots=True)
class Cause:
    name: str  # For programs: out_of_memory, nccl_timeout, killed, ...
    budget: Budget
    message: str  # For people, one or two sentences.


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How an attempt's process ended: exit.json, or a synthetic one."""

    code: int | None = None
    signal: int | None = None
    reason: str = ""
    """Why the shim stopped or could not start it; empty when the process ended by itself."""
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class FinishedReport:
    outcome: str
    cause: str | None = None
    message: str | None = None
    step: int = 0
    saved: bool = True  # A training that was stopped has saved what it did.


_OWN_CAUSES: dict[str, Budget] = {
    "out_of_memory": Budget.NONE,
    "bad_config": Budget.NONE,
    "bad_data": Budget.NONE,
    "bad_checkpoint": Budget.NONE,
    # Its files are on a node that is lost or busy: no fault of the user.
    "missing_checkpoint": Budget.INFRASTRUCTURE,
    "nan_loss": Budget.NONE,
    "disk_full": Budget.INFRASTRUCTURE,
    "hang": Budget.INFRASTRUCTURE,
}
"""Causes that the trainer names with certainty."""

_OWN_SUSPICIONS = frozenset({"peer_lost", "gpu_error", "data_unreachable"})
"""Causes of the trainer that belong to the infrastructure budget if the output has no details.
All its other causes belong to the user budget.
"""

_COMES_BACK = frozenset({"disk_full", "data_unreachable"})
"""Causes that lie in storage: the same try fails until somebody has made it usable again."""
_PAUSE_S = 30.0
_MOST_DOUBLINGS = 5

INTERNAL = "internal"  # The cause of a run's end that is a bug of Lehr: see ``internal``.

_SHIM_REASONS: dict[str, tuple[Budget, str]] = {
    "shim_lost": (Budget.INFRASTRUCTURE, "its training was lost"),
    "node_rebooted": (Budget.INFRASTRUCTURE, "its training was lost"),
    "node_lost": (Budget.INFRASTRUCTURE, "its training was lost"),
    "peer_lost": (Budget.INFRASTRUCTURE, "another node of its gang was lost"),
    "no_contact": (Budget.INFRASTRUCTURE, "it sent no heartbeat after its start"),
    "gpu_busy": (Budget.INFRASTRUCTURE, "a GPU it was given is still held by other processes"),
    "checkpoint_unreachable": (
        Budget.INFRASTRUCTURE,
        "the checkpoint to resume from could not be fetched",
    ),
    "code_unreachable": (
        Budget.INFRASTRUCTURE,
        "the code that it trains with could not be fetched",
    ),
    "other_protocol": (Budget.NONE, "this Lehr cannot drive the trainer in its code"),
    "environment_failed": (Budget.NONE, "the environment of its code could not be built"),
    "launch_failed": (Budget.INFRASTRUCTURE, "it could not be started"),
    "secret_removed": (Budget.NONE, "a secret that it needs was removed"),
    "terminated": (Budget.PREEMPTION, "it was stopped from outside Lehr"),
}


def classify(ended: ExitReport, finished: FinishedReport | None) -> Cause:
    """Return why an attempt failed. Call it only for attempts that did not do what was desired."""
    if finished is not None and finished.outcome == "failed":
        return _by_trainer(finished, ended)
    stopped = finished is not None and finished.outcome == "stopped"
    saved = ", and saved" if has_saved(finished) else ""
    last = ended.log_tail.strip().rpartition("\n")[2][:300]
    if ended.reason == "terminated" and last.startswith("lehr "):
        return Cause("terminated", Budget.PREEMPTION, f"it was stopped by {last}{saved}")
    if ended.reason in _SHIM_REASONS:
        if lacks_space(last):  # Whatever it could not do, that is why.
            return Cause("disk_full", Budget.INFRASTRUCTURE, f"a disk is full: {last}")
        budget, message = _SHIM_REASONS[ended.reason]
        return Cause(ended.reason, budget, f"{message}: {last}" if last else message)
    if stopped:
        # It was over by then, so a bad exit afterwards costs nothing.
        return Cause("terminated", Budget.PREEMPTION, f"it was stopped from outside Lehr{saved}")
    found = _by_pattern(ended.log_tail)
    if found is not None:
        return found
    if ended.signal is not None:
        return _by_signal(ended.signal)
    return _by_exit_code(ended)


def has_saved(finished: FinishedReport | None) -> bool:
    """Return whether the training was stopped, and saved."""
    return finished is not None and finished.outcome == "stopped" and finished.saved


def pause_s(cause: str | None, failures: int) -> float:
    """Return how many seconds a queued run waits after an attempt that ended for this cause.

    ``failures``: used retries of the infrastructure budget, that attempt included.
    """
    doublings = min(max(0, failures - 1), _MOST_DOUBLINGS)
    return _PAUSE_S * 2**doublings if cause in _COMES_BACK else 0.0


def internal(reason: str) -> Cause:
    """Return the cause for a run on which the server's own work kept failing."""
    message = f"an internal error of Lehr: {_line_of(reason, 0)}; see the server's log"
    return Cause(INTERNAL, Budget.NONE, message)


def rough_end(ended: ExitReport) -> str | None:
    """Describe an abnormal exit after the work was done; None for a normal exit."""
    how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.code}"
    if ended.signal is not None or ended.code:
        rank = re.search(r"exitcode\s*:\s*(-?\d+)", ended.log_tail)
        of_rank = f" (a rank's: {rank.group(1)})" if rank is not None else ""
        return f"its process ended with {how}{of_rank} after it had finished and saved"
    return None


def _by_trainer(finished: FinishedReport, ended: ExitReport) -> Cause:
    cause = finished.cause or "error"
    message = finished.message or "the trainer failed without a message"
    if cause in _OWN_CAUSES:
        return Cause(cause, _OWN_CAUSES[cause], message)
    found = _by_pattern(message, quoted=False)
    # A program's log has secrets, and errors that it handled. Of an abort, only it says why.
    program = cause == "program_failed"
    if found is None and (not program or "was killed by SIGABRT" in message):
        found = _by_pattern(ended.log_tail, quoted=not program)
    if found is not None:
        return Cause(found.name, found.budget, f"{message} ({found.message})")
    return Cause(cause, Budget.INFRASTRUCTURE if cause in _OWN_SUSPICIONS else Budget.USER, message)


def _by_pattern(text: str, *, quoted: bool = True) -> Cause | None:
    for pattern in PATTERNS:
        match = pattern.regex.search(text)
        if match is not None:
            line = f": {_line_of(text, match.start())}" if quoted else ""
            return Cause(pattern.cause, pattern.budget, f"{pattern.message}{line}")
    return None


def _line_of(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    stop = text.find("\n", position)
    line = text[start : stop if stop >= 0 else len(text)].strip()
    return line if len(line) <= 300 else line[:297] + "..."


def _by_signal(number: int) -> Cause:
    if number == 9:
        return Cause(
            "killed",
            Budget.INFRASTRUCTURE,
            "it was killed (SIGKILL): by hand, or by the kernel because memory was full",
        )
    if number in {1, 2, 15}:
        return Cause("terminated", Budget.PREEMPTION, "it was stopped from outside Lehr")
    return Cause("crashed", Budget.USER, f"it crashed ({signal_name(number)})")


def _by_exit_code(ended: ExitReport) -> Cause:
    # torchrun itself exits with 1 when a rank was killed; its report names the signal.
    match = re.search(r"exitcode\s*:\s*-(\d+)|Signal (\d+) \(SIG\w+\) received", ended.log_tail)
    if match is not None:
        return _by_signal(int(match.group(1) or match.group(2)))
    if (error := raised(ended.log_tail)) is not None:
        return Cause("user_code", Budget.USER, error)
    if ended.code == 0:
        return Cause("ended_early", Budget.USER, "it ended without reporting that it finished")
    return Cause("user_code", Budget.USER, f"it ended with exit code {ended.code}")


def healed(spent: Mapping[str, int], *, progressed: bool) -> dict[str, int]:
    """Return the used retries by column, after an attempt that may have progressed."""
    return {
        column: 0 if progressed and column in HEALED_BY_PROGRESS else used
        for column, used in spent.items()
    }


@dataclass(frozen=True, slots=True)
class Budgets:
    user: int
    infrastructure: int
    preemption: int

    @classmethod
    def left(cls, allowed: Mapping[str, Any], used: Mapping[str, int]) -> Budgets:
        return cls(
            user=int(allowed["user"]) - used["user"],
            infrastructure=int(allowed["infrastructure"]) - used["infrastructure"],
            preemption=int(allowed["preemption"]) - used["preemption"],
        )

    def covers(self, budget: Budget) -> bool:
        if budget is Budget.NONE:
            return False
        return bool(getattr(self, budget.value) > 0)
