"""The services of the routes, opened and closed with the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from anyio import to_thread
from starlette.responses import Response

from lehr.app.alerting.push import Devices
from lehr.app.alerting.sender import Sender
from lehr.app.alerting.watch import AlertWatch
from lehr.app.presenters import Presenter
from lehr.app.presenters.cluster import ClusterPresenter
from lehr.app.services.budget import pause_overrun
from lehr.app.services.context import Context, Operation, once
from lehr.app.services.nodes import record_minute, see_cluster
from lehr.app.upkeep import Upkeep
from lehr.app.wandb_mirror import state_files
from lehr.cluster.dispatcher import Dispatcher
from lehr.store import Store
from lehr.store.records.cluster import SEEN_EVERY_S
from lehr.store.secret_store import SecretStore
from lehr_api.backpressure import Intake
from lehr_api.logins import EndedLogins, LoginLinks
from lehr_api.settings import Settings
from lehr_api.stream import Hub


@dataclass
class Services(Context):
    """The context of ``lehr.app.services``, and what only the API has."""

    settings: Settings
    hub: Hub
    intake: Intake
    sender: Sender
    login_links: LoginLinks
    ended_logins: EndedLogins

    def once(self, key: str | None, operation: Operation[Any], *, status: int = 201) -> Response:
        """Carry out an operation, once for each ``Idempotency-Key``, and answer with its result.

        The header is the one of draft-ietf-httpapi-idempotency-key-header.
        """
        answer = once(self.store, key, operation, status=status)
        self.dispatcher.wake()
        headers = {"Idempotency-Replayed": "true"} if answer.replayed else {}
        return Response(
            orjson.dumps(answer.body), answer.status, headers, media_type="application/json"
        )


def assemble(
    settings: Settings, store: Store, dispatcher: Dispatcher, cluster_views: ClusterPresenter
) -> Services:
    presenter = Presenter(
        store,
        liveness=dispatcher.liveness,
        heartbeat_at=dispatcher.heartbeat_at,
        mirror_view=partial(state_files.view, store.home),
        nodes=dispatcher.nodes,
    )
    return Services(
        store=store,
        presenter=presenter,
        dispatcher=dispatcher,
        cluster_views=cluster_views,
        home=settings.home,
        one_machine=settings.ray_address is None,
        settings=settings,
        hub=Hub(store, presenter, cluster_views.cluster, heartbeat_s=settings.heartbeat_s),
        intake=Intake(pieces=settings.appends_waiting, size=settings.append_bytes_waiting),
        code=settings.code,
        trainers=settings.trainers,
        sender=Sender(store, SecretStore(settings.home), Devices(settings.home, url=settings.url)),
        login_links=LoginLinks(),
        ended_logins=EndedLogins(settings.home),
    )


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Services]:
    """Open the store and start dispatching; close both at the end. Trainings continue."""
    from lehr.app.wandb_mirror.controller import MirrorController

    store = await to_thread.run_sync(Store.open, settings.home)
    try:
        dispatcher = Dispatcher(
            store,
            settings.home,
            ray_address=settings.ray_address,
            gpus=settings.gpus,
            server_url=settings.url,
        )
        cluster_views = ClusterPresenter(
            store, dispatcher.cluster, dispatcher.queue_order, embedded=settings.ray_address is None
        )
        services = assemble(settings, store, dispatcher, cluster_views)
        services.hub.start()
        # Ray starts in the background, so this returns at once.
        await to_thread.run_sync(dispatcher.start)
        mirror = MirrorController(store, services.presenter, settings.home)
        mirror.start()
        await to_thread.run_sync(services.presenter.rounds.start)
        watch = AlertWatch(
            store,
            services.presenter.runs,
            services.sender,
            wake=dispatcher.wake,
            server_url=settings.url,
        )
        upkeep = (
            Upkeep("budgets", partial(pause_overrun, services)),
            Upkeep("cluster history", partial(see_cluster, services), every_s=SEEN_EVERY_S),
            Upkeep("figures of nodes", partial(record_minute, services)),
        )
        for one in upkeep:
            one.start()
        services.sender.start()
        await to_thread.run_sync(watch.start)
        try:
            yield services
        finally:
            await services.hub.stop()
            last = (services.sender.stop, services.presenter.rounds.stop, mirror.stop)
            for stop in (*(one.stop for one in upkeep), watch.stop, *last, dispatcher.stop):
                await to_thread.run_sync(stop)
    finally:
        await to_thread.run_sync(store.close)
