"""The Python client, for notebooks, scripts and the command line.

``Client()`` finds the local server and its token, or uses LEHR_SERVER and LEHR_TOKEN. It needs only
the light install; pandas is imported by the methods that return frames.
"""

from typing import TYPE_CHECKING, Any

from lehr.client.client import Client
from lehr.client.comparisons import Comparison
from lehr.client.rollouts import Rollout
from lehr.client.runs import Run
from lehr.client.sweeps import Sweep
from lehr.client.transport import StreamEvent

if TYPE_CHECKING:
    from lehr.client.async_client import AsyncClient as AsyncClient
    from lehr.client.async_client import AsyncRollout as AsyncRollout
    from lehr.client.async_client import AsyncRun as AsyncRun
    from lehr.client.async_client import AsyncSweep as AsyncSweep

__all__ = [
    "AsyncClient",
    "AsyncRollout",
    "AsyncRun",
    "AsyncSweep",
    "Client",
    "Comparison",
    "Rollout",
    "Run",
    "StreamEvent",
    "Sweep",
]


def __getattr__(name: str) -> Any:
    # Imported late, so that short commands start fast.
    if name in {"AsyncClient", "AsyncRollout", "AsyncRun", "AsyncSweep"}:
        from lehr.client import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module 'lehr.client' has no attribute {name!r}")
