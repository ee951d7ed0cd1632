"""``once``: a request that arrives twice is recorded once.

The sender names its request with a key. The same key with the same request gets the first answer
again; a second request that arrives while the first is processed waits for it. The same key with
another request is refused. A request that failed is not remembered: nothing was recorded, and it
may be sent again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import orjson
from pydantic import BaseModel

if TYPE_CHECKING:
    from lehr.store import Store


V = TypeVar("V", bound=BaseModel)


@dataclass(frozen=True)
class Operation(Generic[V]):
    """A change to record, in two steps: check, then record."""

    name: str
    """The operation and its subject; equal with ``request``, it means the same operation."""
    request: dict[str, Any]
    """The request as it was sent, in plain JSON values."""
    check: Callable[[], None]
    """Raise if it cannot be recorded. It only reads."""
    record: Callable[[], V]
    """Record it, and return the result."""

    def run(self) -> V:
        self.check()
        return self.record()


@dataclass(frozen=True)
class RecordedAnswer:
    body: dict[str, Any]
    status: int
    replayed: bool = False
    """Whether this is the stored answer to an earlier request of the same key."""


def once(store: Store, key: str | None, operation: Operation[V], *, status: int) -> RecordedAnswer:
    """Carry out ``operation``, or return its first answer.

    An operation that was recorded before is not checked again, whatever has changed since.

    Args:
        store: where answers are remembered.
        key: the sender's name for the request; None: always carry it out.
        operation: what to record.
        status: the HTTP status to store with the answer.

    Raises:
        Conflict: the key was used for another request.
    """
    if key is None:
        return RecordedAnswer(_plain(operation.run()), status)
    digest = _digest(operation)
    before = store.idempotency.answer(key, digest)
    if before is None:
        operation.check()
        # Looked up again inside: another thread may have recorded it meanwhile. The key and the
        # change are committed together, so that a crash cannot separate them.
        with store.transaction():
            before = store.idempotency.answer(key, digest)
            if before is None:
                body = _plain(operation.record())
                store.idempotency.remember(key, digest, status, body)
                return RecordedAnswer(body, status)
    return RecordedAnswer(before.body, before.status, replayed=True)


def nothing_to_check() -> None:
    """Check nothing: for an operation whose rules hold only inside its transaction."""


def _plain(view: BaseModel) -> dict[str, Any]:
    return view.model_dump(mode="json")


def _digest(operation: Operation[Any]) -> str:
    canonical = orjson.dumps([operation.name, operation.request], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()
