"""The account of an agent on disk: what it launched, and what that was planned to use.

One file of JSON and one lock per account. It is written before a launch is sent and after it was
answered, so that a launch is in it whenever it may be recorded at the server. Two programs with
the same account wait for each other.
"""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from lehr.errors import UserError
from lehr_trainer.files import write_atomically

_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
Kind = Literal["run", "sweep", "rollout"]


class Amount(BaseModel):
    """GPU-hours, and dollars where their price is known."""

    model_config = ConfigDict(frozen=True)

    gpu_hours: float = 0.0
    dollars: float | None = None

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            gpu_hours=self.gpu_hours + other.gpu_hours,
            dollars=_both(self, other, lambda a, b: a + b),
        )

    def less(self, other: Amount) -> Amount:
        """Return this without the other; nothing becomes negative."""
        return Amount(
            gpu_hours=max(self.gpu_hours - other.gpu_hours, 0.0),
            dollars=_both(self, other, lambda a, b: max(a - b, 0.0)),
        )

    def at_least(self, other: Amount) -> Amount:
        return Amount(
            gpu_hours=max(self.gpu_hours, other.gpu_hours), dollars=_both(self, other, max)
        )


NOTHING = Amount(dollars=0.0)


class Pending(BaseModel):
    """A launch that was sent, and whose answer has not come."""

    verb: str
    kind: Kind
    """What its answer is."""
    path: str
    body: dict[str, Any] | None
    planned: Amount
    before: Amount = NOTHING
    """What its object had used before; nothing for a new one."""
    ended: bool = False
    """Whether its object had ended, so that what it was promised before counts no more."""
    others: list[str] = []
    """Runs of its object that it does not start."""
    at: float


class Done(BaseModel):
    """A launch that the server recorded."""

    verb: str
    path: str
    body: dict[str, Any] | None
    object_id: str
    at: float


class Owned(BaseModel):
    """A run, sweep or rollout that the account pays for."""

    kind: Kind
    name: str
    before: Amount
    """Used before the account first paid for it."""
    promised: Amount
    """What it is planned to use of the account, as long as it lives."""
    used: Amount = NOTHING
    """What it had used of the account when that was last read."""
    launched: bool = True
    """Whether the account launched it, or only continued or extended what others had launched."""
    others: list[str] = []
    """Its runs that the account never started."""


class Book(BaseModel):
    version: Literal[1] = 1
    server: str
    pending: dict[str, Pending] = {}
    """By the request's id, which the agent chose."""
    done: dict[str, Done] = {}
    owned: dict[str, Owned] = {}
    """By id."""


class Ledger:
    """The book of one account, opened under its lock."""

    def __init__(self, folder: Path, account: str, server: str) -> None:
        """``server``: the address that the account is for.

        Raises:
            UserError: the account's name is no file name.
        """
        if _ACCOUNT.fullmatch(account) is None:
            raise UserError(
                f"--account {account!r} is not valid: use letters, digits, '.', '_' and '-', "
                "at most 60.",
                hint="lehr mcp --account lr-search",
            )
        self.account = account
        self._server = server
        self._path = folder / f"{account}.json"

    @contextmanager
    def opened(self) -> Iterator[Book]:
        """Lock the account and yield its book; ``save`` writes it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._read()

    def save(self, book: Book) -> None:
        """Write the book durably."""
        write_atomically(self._path, book.model_dump_json(indent=1), mode=0o600)

    def _read(self) -> Book:
        try:
            book = Book.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return Book(server=self._server)
        except ValidationError as error:
            raise UserError(
                f"{self._path} is damaged, so what account {self.account} has used is unknown.",
                hint="Restore the file, or name another --account, whose budget begins again.",
            ) from error
        if book.server != self._server:
            raise UserError(
                f"account {self.account} is for the server {book.server}, not {self._server}.",
                hint="Name another --account for this server.",
            )
        return book


def now() -> float:
    return time.time()


def _both(one: Amount, other: Amount, combine: Any) -> float | None:
    if one.dollars is None or other.dollars is None:
        return None
    return float(combine(one.dollars, other.dollars))
