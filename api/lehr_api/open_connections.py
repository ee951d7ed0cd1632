"""Limits for the number of open connections: of one address, and of all."""

from __future__ import annotations

import ipaddress
import logging
import resource
import time
from collections import Counter

MOST_OF_AN_ADDRESS = 2_000
"""Connections that another machine may have open, or a quarter of all, if that is less.

A node has a few for each of its trainings, and the nodes of a cluster may come from one address.
This machine has no limit of its own: a proxy here brings all others.
"""
_SHARE = 0.5
"""Of the files that this process may open. The rest is for the store and for streams."""
WARN_EVERY_S = 60.0

_log = logging.getLogger("lehr.api")


class OpenConnections:
    """Counts the connections of a server; for the event loop's thread only."""

    def __init__(self) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = None if soft == resource.RLIM_INFINITY else int(soft * _SHARE)
        few = MOST_OF_AN_ADDRESS if self.most is None else self.most // 4
        self.most_of_an_address = min(MOST_OF_AN_ADDRESS, few)
        self._by_address: Counter[str] = Counter()
        self._warned_at = -WARN_EVERY_S

    def add(self, address: str) -> bool:
        """Count a connection from an address; return False if it must be closed instead."""
        if self.most is not None and self._by_address.total() >= self.most:
            self._warn(f"{self.most:,} connections are open, half of the files that may be open")
            return False
        most = self.most_of_an_address
        if self._by_address[address] >= most and not is_own_machine(address):
            self._warn(f"{most:,} connections from {address} are open")
            return False
        self._by_address[address] += 1
        return True

    def remove(self, address: str) -> None:
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def _warn(self, why: str) -> None:
        if time.monotonic() - self._warned_at >= WARN_EVERY_S:
            self._warned_at = time.monotonic()
            _log.warning("%s: further ones are closed at once", why)


def is_own_machine(address: str) -> bool:
    """Return whether a peer's address is one of this machine's loopback, or a Unix socket."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True
