"""Validation of a node's report about how an attempt ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from lehr_trainer.contract.records import Count

Text = Annotated[str, Field(max_length=200_000)]


class _Sound(BaseModel):
    model_config = ConfigDict(extra="ignore", use_attribute_docstrings=True)


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
