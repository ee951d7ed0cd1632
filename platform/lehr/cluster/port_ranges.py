"""Ports that others than Ray use on a node, which Ray's fixed ports must avoid."""

from __future__ import annotations

from pathlib import Path

RENDEZVOUS = range(20_000, 30_000)
"""Where the ranks of a run on several nodes meet: below the ports that systems give away."""
_KERNEL = Path("/proc/sys/net/ipv4")


def given_by_kernel(settings: Path = _KERNEL) -> frozenset[int]:
    """Return the ports that the kernel gives to any connection, as gloo and NCCL ask for them.

    Those that it keeps back (``ip_local_reserved_ports``) are not among them.
    """
    try:
        first, last = map(int, (settings / "ip_local_port_range").read_text().split())
        kept = (settings / "ip_local_reserved_ports").read_text().strip()
    except (OSError, ValueError):
        return frozenset()
    given = set(range(first, last + 1))
    for part in kept.split(",") if kept else []:
        low, _, high = part.partition("-")
        given.difference_update(range(int(low), int(high or low) + 1))
    return frozenset(given)
