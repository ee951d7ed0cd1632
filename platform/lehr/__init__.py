"""Lehr: an experiment platform for pretraining language models.

``from lehr import Client`` (or ``AsyncClient``) is the public face. Attributes load on first use,
so that ``import lehr`` stays fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr.client import AsyncClient as AsyncClient
    from lehr.client import Client as Client

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> Any:
    if name in {"AsyncClient", "Client"}:
        from lehr import client

        return getattr(client, name)
    msg = f"module 'lehr' has no attribute {name!r}"
    raise AttributeError(msg)
