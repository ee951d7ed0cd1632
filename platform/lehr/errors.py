"""The exceptions of Lehr.

::

    LehrError
    ├── UserError             the user's input is wrong: what, where, what would be right (exit 2)
    │   ├── SpecError         a spec does not validate; lists every problem found
    │   ├── NotFound          no such run, sweep, checkpoint, metric; lists similar names
    │   ├── Conflict          the thing exists, but its state does not allow the request
    │   │   └── RayStarting   Ray is not up yet; the same request succeeds later
    │   └── HomeUnusable      the home folder is in use, too new, or on a network disk
    ├── PlanRefused           the plan cannot work, e.g. it does not fit (exit 3)
    ├── ServerUnavailable     no server answers (exit 4)
    ├── Unauthorized          the token is missing or wrong (exit 4)
    ├── Fenced                the run of an attempt was deleted; the attempt must stop
    ├── OffsetMismatch        a stream's bytes have an unexpected offset
    ├── StoreUnavailable      the disk or the database rejected a write; it was not acknowledged
    └── InternalError         a bug of Lehr (exit 1)

``code`` is the machine-readable name in problem+json; ``status`` its HTTP
status; ``exit_code`` the command line's.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar


class LehrError(Exception):
    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n  {self.hint}"


class UserError(LehrError):
    code = "invalid"
    status = 422
    exit_code = 2


@dataclass(frozen=True)
class SpecProblem:
    """One problem of a spec.

    ``path`` is dotted (``train.optimizer.lr``). ``line`` and ``column`` count from 1 and are known
    when the spec came from a file.
    """

    path: str
    message: str
    hint: str | None = None
    line: int | None = None
    column: int | None = None
    source: str | None = None

    @classmethod
    def of(cls, path: str, text: str, hint: str | None = None) -> SpecProblem:
        """Return a problem whose message begins with its path."""
        return cls(path, f"{path}: {text}", hint)

    def __str__(self) -> str:
        where = self.source or ""
        if self.line is not None:
            where += f", line {self.line}" if where else f"line {self.line}"
            if not self.path and self.column is not None:
                where += f", column {self.column}"  # A syntax error has no path.
        text = f"{where}: {self.message}" if where else self.message
        return text if self.hint is None else f"{text}\n  {self.hint}"


MOST_PROBLEMS = 100
"""Problems of one spec that are reported: one of 4 MiB may have hundreds of thousands."""


class SpecError(UserError):
    code = "invalid_spec"

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        shown = problems[:MOST_PROBLEMS]
        lines = [str(problem) for problem in shown]
        if len(problems) > len(shown):
            lines.append(f"(and {len(problems) - len(shown):,} more)")
        super().__init__("\n".join(lines))
        self.problems = tuple(shown)


class NotFound(UserError):
    code = "not_found"
    status = 404


class Conflict(UserError):
    code = "conflict"
    status = 409


class RayStarting(Conflict):
    code = "ray_starting"


class HomeUnusable(UserError):
    code = "home_unusable"
    status = 409


class PlanRefused(LehrError):
    code = "plan_refused"
    status = 422
    exit_code = 3


class ServerUnavailable(LehrError):
    code = "server_unavailable"
    status = 503
    exit_code = 4


class Unauthorized(LehrError):
    code = "unauthorized"
    status = 401
    exit_code = 4


class Forbidden(LehrError):
    """The token is valid, but its role or its budget does not include this."""

    code = "forbidden"
    status = 403
    exit_code = 4


class Fenced(LehrError):
    code = "fenced"
    status = 410


class OffsetMismatch(LehrError):
    code = "offset_mismatch"
    status = 409

    def __init__(self, message: str, *, expected: int) -> None:
        super().__init__(message)
        self.expected = expected
        """The offset to continue from: the number of bytes stored so far."""


class StoreUnavailable(LehrError):
    code = "store_unavailable"
    status = 503


class InternalError(LehrError):
    code = "internal"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most similar to ``name``, or None.

    Of several similar names, one with the same first letter comes first: ``prune`` finds
    ``pruning``, not ``run``. An initialism counts as similar (``learning_rate`` finds ``lr``), and
    so does a unique prefix (``min`` finds ``minimize``).
    """
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return next((one for one in close if one[0] == name[0]), close[0])
    begun = [n for n in names if len(name) >= 3 and n.startswith(name)]
    if len(begun) == 1:
        return begun[0]
    initials = "".join(part[0] for part in name.split("_") if part)
    if initials in names:
        return initials
    held = [n for n in names if n in name.split("_") or name in n.split("_")]
    return held[0] if held else None


def did_you_mean(name: str, valid: Iterable[str]) -> str | None:
    """Return the question for the valid name most similar to ``name``; None if none is similar."""
    near = nearest(name, valid)
    return f"Did you mean {near}?" if near else None


def not_installed(error: ModuleNotFoundError) -> LehrError:
    """Return the error of a missing extra, with the command that adds it.

    Raises:
        ModuleNotFoundError: the same, if no extra of Lehr has the module.
    """
    from lehr_trainer import extras

    extra = extras.extra_with(error.name)
    if extra is None:
        raise error
    return LehrError(
        f"this needs {error.name}, which is not installed.",
        hint=f"Install it: {extras.install(f'lehr[{extra}]')}",
    )
