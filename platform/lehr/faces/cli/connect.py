"""Connect to the server; the argument that names a run, sweep or rollout."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.errors import LehrError
from lehr.faces.cli.output import say

_TIMEOUT_S = 1.0
_MOST = 50

if TYPE_CHECKING:
    from lehr.faces.client import Client


def _names(incomplete: str) -> list[str]:
    """Complete names of runs, sweeps and rollouts. Return none when no server answers quickly."""
    from lehr.faces.client import Client

    try:
        with Client(os.environ.get("LEHR_SERVER") or None, timeout_s=_TIMEOUT_S) as client:
            names = [run.name for run in client.runs(search=incomplete or None, limit=_MOST)]
            names += [sweep.name for sweep in client.sweeps(limit=_MOST)]
            names += [rollout.name for rollout in client.rollouts(limit=_MOST)]
    except LehrError:
        return []
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


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
