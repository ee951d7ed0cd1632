"""The Python client: what a notebook, a script and the command line talk to a server with.

``Client()`` finds the local server and its token, or LEHR_SERVER and LEHR_TOKEN. It needs the
light install only; pandas is imported by the methods that return frames.
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
    # Late: what a command of a tenth of a second does not need should not cost it a hundredth.
    if name in {"AsyncClient", "AsyncRollout", "AsyncRun", "AsyncSweep"}:
        from lehr.client import async_client

        return getattr(async_client, name)
    raise AttributeError(f"module 'lehr.client' has no attribute {name!r}")
