"""Connect to the server; the argument that names a run, sweep or rollout."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.faces.cli.output import say

if TYPE_CHECKING:
    from lehr.faces.client import Client


def _names(incomplete: str) -> list[str]:
    from lehr.faces.cli.completion import refs

    return refs(incomplete)


_REF = "Id, unique prefix of an id, or name"
Ref = Annotated[
    str,
    typer.Argument(metavar="REF", help=f"{_REF} (the newest of that name).", autocompletion=_names),
]
ActRef = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help=f"{_REF}. If several have that name: the one whose state allows this; if several are "
        "left, they are listed and nothing is done.",
        autocompletion=_names,
    ),
]


def connect() -> Client:
    """Return a client for ``--server`` or LEHR_SERVER, else for this machine's server."""
    from lehr.faces.client import Client

    return Client(os.environ.get("LEHR_SERVER") or None, on_silence=say)
