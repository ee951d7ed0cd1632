"""Ports that others than Ray use on a node, which Ray's fixed ports must avoid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

RENDEZVOUS = range(20_000, 30_000)
"""Where the ranks of a run on several nodes meet: below the ports that systems give away."""
BASES = range(1024, 65_001)
"""First ports of Ray that may be chosen at all."""
_KERNEL = Path("/proc/sys/net/ipv4")


def given_by_kernel(settings: Path = _KERNEL) -> list[range]:
    """Return the ports that the kernel gives to any connection, as gloo and NCCL ask for them.

    Those that it keeps back (``ip_local_reserved_ports``) are not among them.
    """
    try:
        first, last = map(int, (settings / "ip_local_port_range").read_text().split())
        kept = (settings / "ip_local_reserved_ports").read_text().strip()
    except (OSError, ValueError):
        return []
    reserved: set[int] = set()
    for part in kept.split(",") if kept else []:
        low, _, high = part.partition("-")
        reserved.update(range(int(low), int(high or low) + 1))
    return list(_runs(port for port in range(first, last + 1) if port not in reserved))


def clash(ports: range, given: Sequence[range]) -> str | None:
    """Return which range of others the ports overlap, and who uses it; None if they overlap none.

    ``given``: by the kernel.
    """
    if _overlap(ports, RENDEZVOUS):
        return f"{text(RENDEZVOUS)}, where the ranks of a run on several nodes meet"
    found = next((one for one in given if _overlap(ports, one)), None)
    if found is None:
        return None
    return f"{text(found)}, which the kernel gives to any connection, e.g. of gloo and NCCL"


def free_bases(span: int, given: Sequence[range]) -> list[range]:
    """Return the first ports of which ``span`` ports overlap no range of others."""
    used = {port for one in (RENDEZVOUS, *given) for port in one}
    last = BASES[-1] + span - 1
    runs = _runs(port for port in range(BASES[0], last + 1) if port not in used)
    return [range(one[0], one[-1] - span + 2) for one in runs if len(one) >= span]


def text(ports: range) -> str:
    return f"{ports[0]} to {ports[-1]}" if len(ports) > 1 else str(ports[0])


def _overlap(one: range, other: range) -> bool:
    return one[0] <= other[-1] and other[0] <= one[-1]


def _runs(ports: Iterator[int]) -> Iterator[range]:
    """Join increasing ports to ranges without gaps."""
    first = last = None
    for port in ports:
        if first is None or last is None:
            first = port
        elif port != last + 1:
            yield range(first, last + 1)
            first = port
        last = port
    if first is not None and last is not None:
        yield range(first, last + 1)
