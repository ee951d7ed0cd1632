"""``AsyncClient``: what ``Client`` does, to be awaited.

Requests, retries and answers are the synchronous client's own code, which runs on the event loop
by way of ``lehr.client.loop``; here it is only given its asynchronous face. A test holds the two
faces together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
)

from lehr.client import loop
from lehr.client.async_transport import AsyncTransport
from lehr.client.client import Client
from lehr.client.comparisons import Comparison, Identified
from lehr.client.rollouts import Rollout
from lehr.client.runs import Run
from lehr.client.sweeps import Sweep
from lehr.schemas import (
    Latest,
    RolloutDetail,
    RolloutView,
    RunDetail,
    RunView,
    StageView,
    SweepDetail,
    SweepView,
    TrialView,
)

if TYPE_CHECKING:
    import pandas as pd

    from lehr.specs import RunSpec
    from lehr_trainer.configs.train import TrainConfig

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class AsyncProxy(Generic[S]):
    """The asynchronous face of a synchronous object."""

    def __init__(self, sync: S) -> None:
        self._sync = sync

    def __repr__(self) -> str:
        return repr(self._sync).replace("<", "<Async", 1)


def _awaited(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, T]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await loop.run(lambda: method(self._sync, *args, **kwargs))

    return call


def _run(
    method: Callable[Concatenate[S, P], Run],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, AsyncRun]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return self if found is self._sync and isinstance(self, AsyncRun) else AsyncRun(found)

    return call


def _runs(
    method: Callable[Concatenate[S, P], list[Run]],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, list[AsyncRun]]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> list[AsyncRun]:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return [AsyncRun(run) for run in found]

    return call


def _sweep(
    method: Callable[Concatenate[S, P], Sweep],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, AsyncSweep]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncSweep:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return self if found is self._sync and isinstance(self, AsyncSweep) else AsyncSweep(found)

    return call


def _sweeps(
    method: Callable[Concatenate[S, P], list[Sweep]],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, list[AsyncSweep]]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> list[AsyncSweep]:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return [AsyncSweep(sweep) for sweep in found]

    return call


def _rollout(
    method: Callable[Concatenate[S, P], Rollout],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, AsyncRollout]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRollout:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return (
            self if found is self._sync and isinstance(self, AsyncRollout) else AsyncRollout(found)
        )

    return call


def _rollouts(
    method: Callable[Concatenate[S, P], list[Rollout]],
) -> Callable[Concatenate[AsyncProxy[S], P], Coroutine[Any, Any, list[AsyncRollout]]]:
    @wraps(method)
    async def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> list[AsyncRollout]:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return [AsyncRollout(rollout) for rollout in found]

    return call


def _iterated(
    method: Callable[Concatenate[S, P], Iterator[T]],
) -> Callable[Concatenate[AsyncProxy[S], P], AsyncIterator[T]]:
    @wraps(method)
    def call(self: AsyncProxy[S], /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return loop.iterate(lambda: method(self._sync, *args, **kwargs))

    return call


class AsyncRun(AsyncProxy[Run]):
    """A run as it was when last read; ``await run.refresh()`` reads it again."""

    @property
    def view(self) -> RunView:
        return self._sync.view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def ended(self) -> bool:
        return self._sync.ended

    @property
    def step(self) -> int | None:
        """Optimizer steps done, as last heard."""
        return self.view.step

    @property
    def attempt(self) -> int:
        """Number of its newest launch; 0 before the first."""
        return self.view.attempt

    @property
    def reason(self) -> str | None:
        """Why it is in its state, or why it waits."""
        return self._sync.reason

    @property
    def tags(self) -> list[str]:
        return self.view.tags

    @property
    def latest(self) -> dict[str, Latest]:
        return self.view.latest

    @property
    def url(self) -> str:
        """Its page on the dashboard."""
        return self._sync.url

    def _repr_html_(self) -> str:
        return self._sync._repr_html_()

    async def detail(self) -> RunDetail:
        """The view with spec, provenance and attempts."""
        return await loop.run(lambda: self._sync.detail)

    async def spec(self) -> RunSpec:
        return await loop.run(lambda: self._sync.spec)

    async def config(self) -> TrainConfig:
        """What the trainer runs with, e.g. ``(await run.config()).optimizer.lr``."""
        return await loop.run(lambda: self._sync.config)

    refresh = _run(Run.refresh)
    cancel = _run(Run.cancel)
    pause = _run(Run.pause)
    resume = _run(Run.resume)
    retry = _run(Run.retry)
    checkpoint = _run(Run.checkpoint)
    archive = _run(Run.archive)
    unarchive = _run(Run.unarchive)
    tag = _run(Run.tag)
    untag = _run(Run.untag)
    deletion = _awaited(Run.deletion)
    delete = _awaited(Run.delete)
    fork = _run(Run.fork)
    mirror = _run(Run.mirror)
    wait = _run(Run.wait)
    metrics = _awaited(Run.metrics)
    series = _awaited(Run.series)
    history = _awaited(Run.history)
    plot = _awaited(Run.plot)
    export = _awaited(Run.export)
    log_streams = _awaited(Run.log_streams)
    logs = _iterated(Run.logs)
    search_logs = _iterated(Run.search_logs)
    events = _awaited(Run.events)
    samples = _awaited(Run.samples)
    checkpoints = _awaited(Run.checkpoints)
    verify_checkpoint = _awaited(Run.verify_checkpoint)
    download_checkpoint = _awaited(Run.download_checkpoint)
    checkpoint_deletion = _awaited(Run.checkpoint_deletion)
    delete_checkpoint = _awaited(Run.delete_checkpoint)


class AsyncSweep(AsyncProxy[Sweep]):
    """A sweep as it was when last read; ``await sweep.refresh()`` reads it again."""

    @property
    def view(self) -> SweepView:
        return self._sync.view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def ended(self) -> bool:
        return self._sync.ended

    @property
    def url(self) -> str:
        """Its page on the dashboard."""
        return self._sync.url

    def _repr_html_(self) -> str | None:
        return self._sync._repr_html_() if isinstance(self.view, SweepDetail) else None

    async def detail(self) -> SweepDetail:
        """The view with its trials, spec and notes."""
        return await loop.run(lambda: self._sync.detail)

    async def trials(self) -> list[TrialView]:
        """In the sweep's order."""
        return await loop.run(lambda: self._sync.trials)

    async def notes(self) -> list[str]:
        """What to know of the result: the best is at the edge of the grid, ..."""
        return await loop.run(lambda: self._sync.notes)

    results = _awaited(Sweep.results)
    runs = _runs(Sweep.runs)
    best = _run(Sweep.best)
    refresh = _sweep(Sweep.refresh)
    cancel = _sweep(Sweep.cancel)
    retry = _sweep(Sweep.retry)
    archive = _sweep(Sweep.archive)
    unarchive = _sweep(Sweep.unarchive)
    deletion = _awaited(Sweep.deletion)
    delete = _awaited(Sweep.delete)
    extend = _sweep(Sweep.extend)
    mirror = _sweep(Sweep.mirror)
    wait = _sweep(Sweep.wait)
    frame = _awaited(Sweep.frame)
    plot = _awaited(Sweep.plot)


class AsyncRollout(AsyncProxy[Rollout]):
    """A rollout as it was when last read; ``await rollout.refresh()`` reads it again."""

    @property
    def view(self) -> RolloutView:
        return self._sync.view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        """running, passed, failed or cancelled."""
        return self.view.state

    @property
    def ended(self) -> bool:
        return self._sync.ended

    @property
    def reason(self) -> str | None:
        """Why it stopped."""
        return self.view.reason

    @property
    def url(self) -> str:
        """Its page on the dashboard."""
        return self._sync.url

    def _repr_html_(self) -> str | None:
        return self._sync._repr_html_() if isinstance(self.view, RolloutDetail) else None

    async def detail(self) -> RolloutDetail:
        """The view with its stages, spec and notes."""
        return await loop.run(lambda: self._sync.detail)

    async def stages(self) -> list[StageView]:
        """In their order, those to come too."""
        return await loop.run(lambda: self._sync.stages)

    async def notes(self) -> list[str]:
        """What to know of it: a stage that was left out, a gate that could not be judged."""
        return await loop.run(lambda: self._sync.notes)

    gates = _awaited(Rollout.gates)
    runs = _runs(Rollout.runs)
    run = _run(Rollout.run)
    refresh = _rollout(Rollout.refresh)
    cancel = _rollout(Rollout.cancel)
    archive = _rollout(Rollout.archive)
    unarchive = _rollout(Rollout.unarchive)
    wait = _rollout(Rollout.wait)
    frame = _awaited(Rollout.frame)


class AsyncComparison(AsyncProxy[Comparison]):
    """Runs side by side."""

    @property
    def view(self) -> Comparison:
        return self._sync

    @property
    def notes(self) -> list[str]:
        """What the comparison cannot say, in words."""
        return self._sync.notes

    def frame(self) -> pd.DataFrame:
        """pandas: a row a run, the baseline first, with what may change the outcome."""
        return self._sync.frame()

    def _repr_html_(self) -> str:
        return self._sync._repr_html_()

    curves = _awaited(Comparison.curves)
    plot = _awaited(Comparison.plot)


class AsyncClient(AsyncProxy[Client]):
    """A Lehr server, on an asyncio event loop.

    ::

        async with AsyncClient() as lehr:
            sweep = await lehr.sweep("sweeps/lr_grid.yaml")
            await sweep.wait()
            best = await sweep.best()

    It has ``Client``'s methods and raises what that raises. What a property of ``Run`` or ``Sweep``
    may have to ask the server for is a method here: ``await run.config()``.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        on_silence: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(_Client(server, token, timeout_s=timeout_s, on_silence=on_silence))

    @property
    def server(self) -> str:
        return self._sync.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def compare(
        self,
        *refs: str | Identified,
        metric: str = "val/loss",
        x: Literal["step", "tokens", "time", "flops"] = "step",
    ) -> AsyncComparison:
        """Runs side by side; see ``Client.compare``."""
        return AsyncComparison(
            await loop.run(lambda: self._sync.compare(*refs, metric=metric, x=x))
        )

    close = _awaited(Client.close)
    submit = _run(Client.submit)
    runs = _runs(Client.runs)
    run = _run(Client.run)
    sweep = _sweep(Client.sweep)
    sweeps = _sweeps(Client.sweeps)
    find_sweep = _sweep(Client.find_sweep)
    rollout = _rollout(Client.rollout)
    rollouts = _rollouts(Client.rollouts)
    find_rollout = _rollout(Client.find_rollout)
    cluster = _awaited(Client.cluster)
    exclude_node = _awaited(Client.exclude_node)
    readmit_node = _awaited(Client.readmit_node)
    queue = _awaited(Client.queue)
    health = _awaited(Client.health)
    stream = _iterated(Client.stream)


class _Client(Client):
    _transport_kind = AsyncTransport
