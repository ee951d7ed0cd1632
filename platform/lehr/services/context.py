"""``Context``: the objects that the services use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from lehr.control.resources import Node
    from lehr.presenters import Presenter
    from lehr.schemas.cluster import ClusterView, QueueEntry
    from lehr.specs import Resources
    from lehr.store import Store


class Dispatching(Protocol):
    """The part of the dispatcher that services use (``lehr.cluster.dispatcher.Dispatcher``)."""

    def wake(self) -> Any:
        """Run the next tick now, because something changed."""

    def exclude_node(self, name: str, reason: str) -> None: ...
    def readmit_node(self, name: str) -> None: ...

    def can_ever_place(self, resources: Resources) -> str | None:
        """Return why this cluster can never hold such a run; None if it may."""

    def nodes(self) -> Sequence[Node]:
        """Return all nodes, also those that do not answer or have left."""


class ClusterViews(Protocol):
    """The cluster and its queue as people see them (``lehr.presenters.cluster``)."""

    def cluster(self) -> ClusterView: ...
    def queue(self) -> list[QueueEntry]: ...


@dataclass
class Context:
    store: Store
    presenter: Presenter
    dispatcher: Dispatching
    cluster_views: ClusterViews
    home: Path
    """Lehr's home."""
    one_machine: bool
    """Whether trainings run on this machine only, so that they use its files."""
    code: Literal["any", "installed"] = field(default="any", kw_only=True)
    """installed: the server trains with its own installed trainer only, and accepts no code."""
    trainers: tuple[str, ...] = field(default=(), kw_only=True)
    """With code installed: modules that may train besides Lehr's trainer."""
