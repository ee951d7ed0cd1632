"""The cluster's nodes as the last server knew them, in ``<home>/nodes.json``.

Ray's head forgets its nodes when it ends, and they need a while to come back. Without this file a
new server would not know that they are missing. If the file is lost, only that is lost.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from lehr.cluster.membership import Member
from lehr.errors import StoreUnavailable
from lehr_trainer.files import write_atomically

FILE = "nodes.json"
KEPT_S = 7 * 86_400.0  # A node that has been away for longer is no longer expected.
WRITE_S = 2.0
AGAIN_S = 600.0
"""The file is written this often even if no node has changed: it has the time of their reports."""
NOT_BACK = "has not come back since the server started"
log = logging.getLogger(__name__)


class KnownNodes:
    """Remembers the nodes for the next server. Not for several threads at once."""

    def __init__(
        self,
        home: Path,
        *,
        ray_address: str | None,
        own: Collection[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ray_address``: of a cluster that is not Lehr's own. ``own``: known without the file."""
        self._path = home / FILE
        self._cluster = ray_address or ""
        self._own = frozenset(own)
        self._clock = clock
        self._read = {name: entry for name, entry in self._load().items() if name not in self._own}
        self._written: tuple[float, list[object]] | None = None
        self._failed = False

    def members(self) -> list[Member]:
        """Return the nodes that the last server knew."""
        return [
            Member(
                name,
                address=str(entry.get("address", "")),
                gpus=tuple(entry["gpus"]),
                hello={key: entry[key] for key in ("cpus", "runs_folder") if key in entry},
                last_seen_at=entry["seen_at"],
                away=NOT_BACK,
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
