"""What all services share: the ``Context``, and ``once``, which records a request once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import orjson
from pydantic import BaseModel

from lehr.app.presenters import Presenter
from lehr.app.presenters.cluster import ClusterPresenter
from lehr.cluster.dispatcher import Dispatcher
from lehr.schemas.rollouts import RolloutDetail
from lehr.schemas.runs import RunDetail
from lehr.schemas.sweeps import SweepDetail
from lehr.store import Store


@dataclass
class Context:
    store: Store
    presenter: Presenter
    dispatcher: Dispatcher
    cluster_views: ClusterPresenter  # The cluster and its queue as people see them.
    home: Path  # Lehr's home.
    one_machine: bool  # Whether trainings run on this machine only, so that they use its files.
    code: Literal["any", "installed"] = field(default="any", kw_only=True)
    """installed: the server trains with its own installed trainer only, and accepts no code."""
    trainers: tuple[str, ...] = field(default=(), kw_only=True)
    """With code installed: modules that may train besides Lehr's trainer."""

    def run(self, run_id: str) -> RunDetail:
        """Return the run as it is now; ``sweep`` and ``rollout`` do the same for these."""
        return self.presenter.runs.detail(self.store.runs.get(run_id))

    def sweep(self, sweep_id: str) -> SweepDetail:
        return self.presenter.sweeps.detail(self.store.sweeps.get(sweep_id))

    def rollout(self, rollout_id: str) -> RolloutDetail:
        return self.presenter.rollouts.detail(self.store.rollouts.get(rollout_id))


V = TypeVar("V", bound=BaseModel)

Record = Callable[[], str]
"""Records a change within a transaction, and returns the id of what it made or changed."""


@dataclass(frozen=True)
class Operation(Generic[V]):
    """A change to record, in three steps: prepare, record, view.

    Only ``record`` runs in the transaction, while no other thread can write. So all that takes long
    belongs into the other two.
    """

    name: str  # The operation and its subject; equal with ``request``, it means the same operation.
    request: dict[str, Any]  # The request as it was sent, in plain JSON values.
    prepare: Callable[[], Record]
    """Raise if it cannot be recorded; else return what records it. It only reads."""
    view: Callable[[str], V]  # Return the result, given the id that was recorded. It only reads.


@dataclass(frozen=True)
class Answer:
    body: dict[str, Any]
    status: int
    replayed: bool = False  # Whether an earlier request of the same key recorded it.


def once(store: Store, key: str | None, operation: Operation[V], *, status: int) -> Answer:
    """Carry out ``operation``, unless it was carried out before; return its result as it is now.

    An operation that was recorded before is not checked again, whatever has changed since.

    ``key`` is the sender's name for the request; without one it is always carried out.

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
