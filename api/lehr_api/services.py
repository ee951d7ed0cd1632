"""The services of the routes, opened and closed with the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from anyio import to_thread

from lehr.presenters import Presenter
from lehr_api.backpressure import Intake
from lehr_api.idempotency import Answers
from lehr_api.stream import Hub

if TYPE_CHECKING:
    from lehr.control.liveness import Liveness
    from lehr.schemas import ClusterView, QueueEntry
    from lehr.specs import Resources
    from lehr.store import Store
    from lehr_api.settings import Settings


class Dispatching(Protocol):
    """The API's view of the dispatcher (``lehr.cluster.dispatcher.Dispatcher``)."""

    def start(self) -> Any: ...
    def stop(self) -> Any:
        """Stop dispatching; trainings continue."""

    def wake(self) -> Any:
        """Run the next tick now."""

    def cluster(self) -> ClusterView: ...
    def queue(self) -> list[QueueEntry]: ...
    def on_heartbeat(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Record a heartbeat. The answer contains the attempt's orders."""

    def on_exit(self, attempt_id: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Record an exit. The answer lists the bytes that are still missing."""

    def silences(self) -> dict[str, Liveness]:
        """Return the liveness by run id, for runs that have a living attempt."""

    def exclude_node(self, name: str, reason: str) -> None: ...
    def readmit_node(self, name: str) -> None: ...

    def can_ever_place(self, resources: Resources) -> str | None:
        """Return why this cluster can never hold such a run; None when it may."""


@dataclass
class Services:
    settings: Settings
    store: Store
    dispatcher: Dispatching
    presenter: Presenter
    hub: Hub
    intake: Intake
    answers: Answers


def assemble(settings: Settings, store: Store, dispatcher: Dispatching) -> Services:
    presenter = Presenter(store, silences=dispatcher.silences)
    return Services(
        settings=settings,
        store=store,
        dispatcher=dispatcher,
        presenter=presenter,
        hub=Hub(store, presenter, dispatcher.cluster, heartbeat_s=settings.heartbeat_s),
        intake=Intake(at_once=settings.appends_at_once, waiting=settings.appends_waiting),
        answers=Answers(store),
    )


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Services]:
    """Open the store and start dispatching; close both at the end. Trainings continue."""
    from lehr.cluster.dispatcher import Dispatcher
    from lehr.store import Store
    from lehr.wandb_mirror.controller import MirrorController

    store = await to_thread.run_sync(Store.open, settings.home)
    try:
        dispatcher = Dispatcher(
            store,
            settings.home,
            ray_address=settings.ray_address,
            gpus=settings.gpus,
            server_url=settings.url,
        )
        services = assemble(settings, store, dispatcher)
        services.hub.start()
        # Ray starts in the background, so this returns at once.
        await to_thread.run_sync(dispatcher.start)
        mirror = MirrorController(store, services.presenter, settings.home)
        mirror.start()
        await to_thread.run_sync(services.presenter.rounds.start)
        try:
            yield services
        finally:
            await services.hub.stop()
            await to_thread.run_sync(services.presenter.rounds.stop)
            await to_thread.run_sync(mirror.stop)
            await to_thread.run_sync(dispatcher.stop)
    finally:
        await to_thread.run_sync(store.close)
