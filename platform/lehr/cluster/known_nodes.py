"""The cluster's nodes as the last server knew them, in ``<home>/nodes.json``.

Ray's head forgets its nodes when it ends, and they need a while to come back. Without this file a
new server would not know that they are missing. If the file is lost, only that is lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lehr.base import home as homes
from lehr.cluster.membership import Member
from lehr.errors import StoreUnavailable
from lehr_trainer.files import write_atomically

FILE = "nodes.json"
KEPT_S = 7 * 86_400.0
"""A node that has been away for longer is no longer expected."""
WRITE_S = 2.0
AGAIN_S = 600.0
"""The file is written this often even if no node has changed: it has the time of their reports."""
NOT_BACK = "has not come back since the server started"
MUST_JOIN = (
    "must join again, since the server's token was replaced: run lehr node token on the server's "
    "machine, and what it prints on the node"
)
log = logging.getLogger(__name__)


class KnownNodes:
    """Remembers the nodes for the next server. Not for several threads at once."""

    def __init__(
        self,
        home: Path,
        *,
        ray_address: str | None,
        server_url: str,
        own: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        home: Lehr's home.
        ray_address: of a Ray cluster that is not Lehr's own.
        server_url: where nodes reach this server.
        own: names of nodes that are known without the file.
        clock: seconds that never go back.
        """
        self._path = home / FILE
        self._cluster = ray_address or ""
        self._key = "" if ray_address else _key(homes.read_token(home))
        self._server_url = server_url
        self._own = frozenset(own)
        self._clock = clock
        self._read = {name: entry for name, entry in self._load().items() if name not in self._own}
        self._written: tuple[float, list[object]] | None = None
        self._failed = False

    def members(self) -> list[Member]:
        """Return the nodes that the last server knew, each with why it is away."""
        return [
            Member(
                name,
                address=str(entry.get("address", "")),
                gpus=tuple(entry["gpus"]),
                hello={key: entry[key] for key in ("cpus", "runs_folder") if key in entry},
                last_seen_at=entry["seen_at"],
                away=self._why_away(entry),
            )
            for name, entry in self._read.items()
        ]

    def note(
        self,
        members: Mapping[str, Member],
        left: Callable[[], Collection[str]],
        *,
        now: bool = False,
    ) -> None:
        """Write the nodes if they have changed, but not at each call. Never raises.

        ``left``: returns those that have left the cluster. ``now``: write any change at once.
        """
        since = None if self._written is None else self._clock() - self._written[0]
        if since is not None and since < WRITE_S and not now:
            return
        others = [one for one in members.values() if one.name not in self._own]
        facts: list[object] = [
            (one.name, one.away, one.usable, one.address, len(one.gpus), one.hello.get("cpus"))
            for one in others
        ]
        before = self._written[1] if self._written else []
        if facts == before and (since is None or since < AGAIN_S):
            return
        self._written = (self._clock(), facts)
        try:
            gone = left()
            self._write(one for one in others if one.name not in gone)
            self._failed = False
        except (OSError, StoreUnavailable) as error:
            if not self._failed:
                log.warning("the nodes are not remembered for the next server: %s", error)
            self._failed = True

    def _write(self, members: Iterable[Member]) -> None:
        nodes = {}
        for member in members:
            if member.away is not None:
                nodes[member.name] = self._read[member.name]
            elif member.gpus and member.last_seen_at is not None:
                nodes[member.name] = {
                    "address": member.address,
                    "gpus": [dict(gpu) for gpu in member.gpus],
                    "cpus": member.hello.get("cpus"),
                    "runs_folder": member.hello.get("runs_folder"),
                    "seen_at": member.last_seen_at,
                    "key": self._key,
                }
        write_atomically(self._path, json.dumps({"cluster": self._cluster, "nodes": nodes}))

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(self._path.read_bytes())
            if found["cluster"] != self._cluster:
                return {}
            return {
                str(name): entry
                for name, entry in found["nodes"].items()
                if time.time() - entry["seen_at"] < KEPT_S and isinstance(entry["gpus"], list)
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("%s cannot be read: %s", self._path, error)
            return {}

    def _why_away(self, entry: Mapping[str, Any]) -> str:
        if entry.get("key") != self._key:
            return MUST_JOIN
        alone = homes.is_loopback(urlsplit(self._server_url).hostname or "")
        if alone and not self._cluster and not homes.is_loopback(str(entry.get("address"))):
            return (
                f"cannot come back: other machines do not reach this server at {self._server_url}. "
                "Start it with --host and --public-url, as before"
            )
        return NOT_BACK


def _key(token: str | None) -> str:
    """Return what tells whether a node joined with this token of the server."""
    return "" if token is None else hashlib.sha256(f"nodes {token}".encode()).hexdigest()[:16]
