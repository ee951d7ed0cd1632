"""Lehr: an experiment platform for pretraining language models.

``from lehr import Client`` is the public face. Attributes load on first use, so that
``import lehr`` stays fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr.faces.client import Client as Client

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from lehr.faces.client import Client

        return Client
    msg = f"module 'lehr' has no attribute {name!r}"
    raise AttributeError(msg)
