"""``once``: a request that arrives twice is recorded once.

The sender names its request with a key. The same key with the same request records nothing more:
the answer is what the first one made, as it is now. A second request that arrives while the first
is recorded waits for it. The same key with another request is refused. A request that failed is not
remembered: nothing was recorded, and it may be sent again.
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

Record = Callable[[], str]
"""Records a change within a transaction, and returns the id of what it made or changed."""


@dataclass(frozen=True)
class Operation(Generic[V]):
    """A change to record, in three steps: prepare, record, view.

    Only ``record`` runs in the transaction, while no other thread can write. So all that takes long
    belongs into the other two.
    """

    name: str
    """The operation and its subject; equal with ``request``, it means the same operation."""
    request: dict[str, Any]
    """The request as it was sent, in plain JSON values."""
    prepare: Callable[[], Record]
    """Raise if it cannot be recorded; else return what records it. It only reads."""
    view: Callable[[str], V]
    """Return the result, given the id that was recorded. It only reads."""


@dataclass(frozen=True)
class Answer:
    body: dict[str, Any]
    status: int
    replayed: bool = False
    """Whether an earlier request of the same key recorded it."""


def once(store: Store, key: str | None, operation: Operation[V], *, status: int) -> Answer:
    """Carry out ``operation``, unless it was carried out before; return its result as it is now.

    An operation that was recorded before is not checked again, whatever has changed since.

    Args:
        store: where keys are remembered.
        key: the sender's name for the request; None: always carry it out.
        operation: what to record.
        status: the HTTP status to store with the answer.

    Raises:
        Conflict: the key was used for another request.
    """
    if key is None:
        record = operation.prepare()
        with store.transaction():
            made = record()
        return Answer(_plain(operation.view(made)), status)
    digest = _digest(operation)
    before = store.idempotency.answer(key, digest)
    if before is None:
        record = operation.prepare()
        # Looked up again inside: another thread may have recorded it meanwhile. The key and the
        # change are committed together, so that a crash cannot separate them.
        with store.transaction():
            before = store.idempotency.answer(key, digest)
            if before is None:
                made = record()
                store.idempotency.remember(key, digest, status, made)
    if before is None:
        return Answer(_plain(operation.view(made)), status)
    return Answer(_plain(operation.view(before.made)), before.status, replayed=True)


def _plain(view: BaseModel) -> dict[str, Any]:
    return view.model_dump(mode="json")


def _digest(operation: Operation[Any]) -> str:
    canonical = orjson.dumps([operation.name, operation.request], option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(canonical).hexdigest()
