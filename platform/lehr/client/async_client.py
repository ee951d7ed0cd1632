"""``AsyncClient``: ``Client`` with methods to await.

Requests, retries and answers are the code of the synchronous client, which ``lehr.client.loop``
runs on the event loop. Each class here has the members of a synchronous one; the types are in
``async_client.pyi``, which ``docs/generate`` writes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Self

from lehr.client import loop
from lehr.client.async_transport import AsyncTransport
from lehr.client.client import Client
from lehr.client.comparisons import Comparison
from lehr.client.rollouts import Rollout
from lehr.client.runs import Run
from lehr.client.sweeps import Sweep
from lehr.schemas.rollouts import RolloutDetail, RolloutView
from lehr.schemas.runs import RunView
from lehr.schemas.sweeps import SweepDetail, SweepView

if TYPE_CHECKING:
    import pandas as pd


class AsyncProxy:
    """The asynchronous wrapper of a synchronous object.

    A subclass gets each public member of the class ``of`` that it does not define: methods are to
    be awaited, iterators are asynchronous, properties stay properties. Those in ``fetched`` may ask
    the server, and become methods.
    """

    def __init__(self, sync: Any) -> None:
        self._sync = sync

    def __init_subclass__(cls, *, of: type, fetched: tuple[str, ...] = ()) -> None:
        for name in dir(of):
            if name.startswith("_") or name in cls.__dict__:
                continue
            member = inspect.getattr_static(of, name)
            if not inspect.isfunction(member):
                made = _fetched(name, member) if name in fetched else _attribute(name, member)
            elif str(member.__annotations__["return"]).startswith("Iterator["):
                made = _iterated(member)
            else:
                made = _awaited(member)
            setattr(cls, name, made)

    def __repr__(self) -> str:
        return repr(self._sync).replace("<", "<Async", 1)


def _awaited(method: Callable[..., Any]) -> Any:
    @wraps(method)
    async def call(self: AsyncProxy, /, *args: Any, **kwargs: Any) -> Any:
        found = await loop.run(lambda: method(self._sync, *args, **kwargs))
        return self if found is self._sync else _asynchronous(found)

    return call


def _iterated(method: Callable[..., Any]) -> Any:
    @wraps(method)
    def call(self: AsyncProxy, /, *args: Any, **kwargs: Any) -> Any:
        return loop.iterate(lambda: method(self._sync, *args, **kwargs))

    return call


def _fetched(name: str, member: Any) -> Any:
    async def call(self: AsyncProxy) -> Any:
        return await loop.run(lambda: getattr(self._sync, name))

    call.__name__, call.__doc__ = name, member.__doc__
    return call


def _attribute(name: str, member: Any) -> Any:
    return property(lambda self: getattr(self._sync, name), doc=member.__doc__)


def _asynchronous(found: Any) -> Any:
    if isinstance(found, list):
        return [_asynchronous(one) for one in found]
    face = _FACES.get(type(found))
    return face(found) if face else found


class AsyncRun(AsyncProxy, of=Run, fetched=("detail", "spec", "config")):
    """A run as it was when last read; ``await run.refresh()`` reads it again."""

    @property
    def view(self) -> RunView:
        return self._sync.view

    def _repr_html_(self) -> str:
        return self._sync._repr_html_()


class AsyncSweep(AsyncProxy, of=Sweep, fetched=("detail", "trials", "notes")):
    """A sweep as it was when last read; ``await sweep.refresh()`` reads it again."""

    @property
    def view(self) -> SweepView:
        return self._sync.view

    def _repr_html_(self) -> str | None:
        return self._sync._repr_html_() if isinstance(self.view, SweepDetail) else None


class AsyncRollout(AsyncProxy, of=Rollout, fetched=("detail", "stages", "notes")):
    """A rollout as it was when last read; ``await rollout.refresh()`` reads it again."""

    @property
    def view(self) -> RolloutView:
        return self._sync.view

    def _repr_html_(self) -> str | None:
        return self._sync._repr_html_() if isinstance(self.view, RolloutDetail) else None


class AsyncComparison(AsyncProxy, of=object):
    """Runs side by side."""

    @property
    def view(self) -> Comparison:
        return self._sync

    @property
    def notes(self) -> list[str]:
        """Limits of the comparison, as sentences."""
        return self._sync.notes

    def frame(self) -> pd.DataFrame:
        """pandas: a row a run, the baseline first, with what may change the outcome."""
        return self._sync.frame()

    def _repr_html_(self) -> str:
        return self._sync._repr_html_()

    curves = _awaited(Comparison.curves)
    plot = _awaited(Comparison.plot)


class AsyncClient(AsyncProxy, of=Client):
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Client(Client):
    _transport_kind = AsyncTransport


_FACES: dict[type, type[AsyncProxy]] = {
    Run: AsyncRun,
    Sweep: AsyncSweep,
    Rollout: AsyncRollout,
    Comparison: AsyncComparison,
}
