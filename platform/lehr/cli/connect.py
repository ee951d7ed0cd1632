"""Connect to the server, and resolve names given on the command line."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli.output import say
from lehr.errors import NotFound

if TYPE_CHECKING:
    from lehr.client import Client, Rollout, Run, Sweep


def _names(incomplete: str) -> list[str]:
    from lehr.cli.completion import refs

    return refs(incomplete)


Ref = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        help="Id, unique prefix of an id, or name.",
        autocompletion=_names,
    ),
]


def connect() -> Client:
    """Return a client for ``--server`` or LEHR_SERVER, else for this machine's server."""
    from lehr.client import Client

    return Client(os.environ.get("LEHR_SERVER") or None, on_silence=say)


def find_any(client: Client, ref: str) -> Run | Sweep | Rollout:
    """Find the rollout, sweep or run with that id or name, in this order.

    A sweep's runs have longer names than the sweep, so the shorter name wins.

    Raises:
        NotFound: no match; with similar names.
    """
    try:
        return client.find_rollout(ref)
    except NotFound as no_rollout:
        try:
            return find(client, ref)
        except NotFound as nothing:
            hint = nothing.hint
            if no_rollout.hint is not None and no_rollout.hint.startswith("Did you mean"):
                hint = no_rollout.hint
            raise NotFound(f"there is no run, sweep or rollout {ref!r}.", hint=hint) from None


def find(client: Client, ref: str) -> Run | Sweep:
    """Find the sweep or run with that id or name; a sweep wins, because its runs have longer names.

    Raises:
        NotFound: no match; with similar names.
    """
    try:
        return client.find_sweep(ref)
    except NotFound as no_sweep:
        try:
            return client.run(ref)
        except NotFound as no_run:
            hints = [error.hint for error in (no_run, no_sweep) if error.hint]
            raise NotFound(
                f"there is no run or sweep {ref!r}.",
                hint=hints[0] if hints else "List them: lehr ls",
            ) from None
