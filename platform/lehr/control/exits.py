"""Reports of how attempts ended: their valid parts, those of a gang as one, and what they say.

Pure: values in, values out. A report is stored as JSON, so it is a mapping here, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, FiniteFloat, ValidationError

from lehr.control.retries import ExitReport, FinishedReport, classify
from lehr_trainer.configs.base import Documented
from lehr_trainer.contract.records import Count

Text = Annotated[str, Field(max_length=200_000)]

STOPPED = "stopped"  # The reason of a part that Lehr has ended.
_FOLLOW = frozenset({"nccl_timeout", "nccl_error", "network", "peer_lost"})
"""Causes of failure that follow when another part of the gang has ended."""


class _Sound(Documented):
    model_config = ConfigDict(extra="ignore")


class LastWord(_Sound):
    """The trainer's ``finished`` record, in case its stream never arrives."""

    outcome: Literal["completed", "stopped", "failed"]
    step: Count = 0
    cause: Text | None = None
    message: Text | None = None


class ExitNote(_Sound):
    """The content of exit.json. Every part may be missing."""

    code: Annotated[int, Field(ge=-(2**31), lt=2**32)] | None = None
    signal: Annotated[int, Field(ge=1, le=255)] | None = None
    reason: Text = ""
    """Why the shim stopped or could not start it; empty when the process ended by itself."""
    detail: Text = ""
    log_tail: Text = ""
    started_at: FiniteFloat | None = None
    ended_at: FiniteFloat | None = None
    boot_id: Text = ""
    finished: LastWord | None = None


def sound_exit(report: object) -> dict[str, Any]:
    """Return the valid parts of an exit report.

    Invalid parts are left out and named in ``dropped``. Nothing is rejected: the attempt has ended
    in any case, and its shim must be able to end, too.
    """
    given: Mapping[Any, Any] = report if isinstance(report, Mapping) else {}
    dropped = [] if given is report else [f"exit: {type(report).__name__} is not an object"]
    try:
        note = ExitNote.model_validate(given)
    except ValidationError as error:
        wrong = {problem["loc"][0] for problem in error.errors()}
        dropped += [_named(problem) for problem in error.errors(include_input=False)]
        note = ExitNote.model_validate({k: v for k, v in given.items() if k not in wrong})
    kept = note.model_dump(mode="json", exclude_unset=True)
    return kept | ({"dropped": dropped} if dropped else {})


def _named(problem: Mapping[str, Any]) -> str:
    return f"{'.'.join(str(part) for part in problem['loc'])}: {problem['msg']}"[:300]


def synthetic_exit(cause: str, message: str, at: float, node: str | None = None) -> dict[str, Any]:
    """Return an exit report for an attempt without its own exit.json. ``node``: the faulty node,
    if known.
    """
    return {
        "code": None,
        "signal": None,
        "reason": cause,
        "detail": message,
        "log_tail": message,
        "ended_at": at,
        "synthetic": True,
        "node": node,
    }


def merge_exit_reports(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the exit reports of a gang's parts, given by node rank. The first failure decides.
    Without one, the first part that was stopped does: the others ended with it.

    Each node has a clock of its own. So parts that failed because another one did come last,
    whatever their clocks say.
    """
    ranked = sorted(parts.values(), key=lambda part: float(part.get("ended_at") or 0.0))
    failed = sorted((part for part in ranked if part.get("code") != 0), key=_follows)
    finished = [part["finished"] for part in ranked if part.get("finished")]
    stopped = [part for part in ranked if part.get("reason")]
    return {
        **(failed or stopped or ranked)[0],
        "finished": finished[0] if finished else None,
        "parts": {rank: dict(part) for rank, part in parts.items()},
    }


def _follows(part: Mapping[str, Any]) -> bool:
    """Return whether a part failed as the rest of a broken gang does."""
    report = exit_report(part)
    return report.reason == STOPPED or classify(report, None).name in _FOLLOW


def with_part(note: Mapping[str, Any], rank: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a gang's exit report with that of one more part.

    If the attempt was given up before, that decision stands: the part is only added.
    """
    parts = {**note.get("parts", {}), rank: dict(part)}
    return {**note, "parts": parts} if note.get("synthetic") else merge_exit_reports(parts)


def delivered_parts(note: Mapping[str, Any]) -> int:
    """Return how many parts of a gang have ended, and sent all of their streams."""
    return sum(bool(part.get("delivered")) for part in note.get("parts", {}).values())


def listed_exit(
    note: Mapping[str, Any], listed: Sequence[Mapping[str, Any] | None]
) -> dict[str, Any]:
    """Return how an attempt ended, from the lists of its agents.

    Args:
        note: its exit report so far. Reports of its own parts come first.
        listed: the report in the list of each of its nodes, by node rank.
    """
    parts: dict[str, Any] = dict(note.get("parts", {}))
    for rank, report in enumerate(listed):
        if report is not None:
            parts.setdefault(str(rank), report)
    return merge_exit_reports(parts) if len(listed) > 1 else dict(parts["0"])


def exit_report(note: Mapping[str, Any]) -> ExitReport:
    return ExitReport(
        code=note.get("code"),
        signal=note.get("signal"),
        reason=str(note.get("reason") or ""),
        log_tail=str(note.get("log_tail") or ""),
    )


def finished_report(record: Mapping[str, Any] | None, *, program: bool) -> FinishedReport | None:
    """Return what the trainer's last record contains, if there is one.

    ``program``: it is a program of the user. Its record names the cause of a stop only if it saved.
    """
    if not record:
        return None
    return FinishedReport(
        outcome=str(record.get("outcome")),
        cause=record.get("cause"),
        message=record.get("message"),
        step=int(record.get("step") or 0),
        saved=not program or record.get("cause") is not None,
    )
