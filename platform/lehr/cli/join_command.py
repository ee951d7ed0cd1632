"""The command by which another machine joins this server's cluster."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from lehr import home, node_tokens
from lehr.errors import Conflict, LehrError

TOKEN_VARIABLE = "LEHR_JOIN_TOKEN"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class JoinCommand:
    text: str
    expires_at: float
    ca_file: Path | None
    """The certificate of the server's own authority, which the other machine needs a copy of."""
    about_ca: str | None
    """What to do about the authority; None without TLS."""


def join_command(where: Path) -> JoinCommand:
    """Return the command that adds a machine.

    Raises:
        LehrError: no server runs here, or other machines cannot reach it.
    """
    info, secret = home.read_server(where), home.read_token(where)
    if info is None or secret is None:
        raise LehrError(
            f"no Lehr server is running for {where}.", hint="Run this on the server's machine."
        )
    if home.is_loopback(urlsplit(info.url).hostname or ""):
        raise Conflict(
            f"other machines cannot reach this server: its URL is {info.url}.",
            hint="lehr down, then lehr up --host 0.0.0.0 --public-url http://ADDRESS:5347 (docs/"
            "cluster.md)",
        )
    expires_at = time.time() + node_tokens.JOIN_LIFETIME_S
    made = node_tokens.join_token(secret, expires_at)
    # Not an argument: `ps` shows those to every user of the machine.
    text = f"{TOKEN_VARIABLE}={made} lehr node join {info.url}"
    ca_file = None if info.ca_file is None else Path(info.ca_file)
    if ca_file is not None:
        text += f" --ca {shlex.quote(ca_file.name)}"
    return JoinCommand(text, expires_at, ca_file, _about_ca(info.url, ca_file))


def join_lines(where: Path, public_url: str | None) -> list[str]:
    """Return what to print about adding machines: nothing if none could reach the public URL."""
    if public_url is None or home.is_loopback(urlsplit(public_url).hostname or ""):
        return []
    made = join_command(where)
    lines = ["  add a node, within a day, by this command on it:", f"    {made.text}"]
    return lines if made.about_ca is None else [*lines, f"    {made.about_ca}"]


def _about_ca(url: str, ca_file: Path | None) -> str | None:
    if ca_file is not None:
        return (
            f"Before that, copy {ca_file} to that machine, into the folder in which you run the "
            "command."
        )
    if url.startswith("https:"):
        return (
            "If an authority of your own signed the certificate, copy its certificate to that "
            "machine, and add: --ca FILE"
        )
    return None
