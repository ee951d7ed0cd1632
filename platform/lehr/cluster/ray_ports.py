"""The ports of a Ray node, and the address by which other machines reach it.

On one machine they are free ones, so that several servers can share it. In a cluster they are
fixed: firewalls open them, and joined nodes find the head again after a restart.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lehr.base import home

DEFAULT_BASE = 6379
SPAN = 121  # Ports from the first to the last of a node.
_BASES = range(DEFAULT_BASE, DEFAULT_BASE + 20 * 200, 200)


@dataclass(frozen=True)
class Ports:
    """All ports that a Ray node listens on, from one number."""

    base: int

    @property
    def all(self) -> range:
        return range(self.base, self.base + SPAN)

    @property
    def head(self) -> int:
        """Return the port at which nodes reach the head; unused on other nodes."""
        return self.base

    @property
    def workers(self) -> range:
        """Return the ports of Ray's worker processes, of which the agent is one."""
        return self.all[21:]

    def single(self) -> dict[str, int]:
        names = (
            *("--node-manager-port", "--object-manager-port", "--runtime-env-agent-port"),
            *("--dashboard-agent-grpc-port", "--metrics-export-port"),
        )
        return {name: self.base + number for number, name in enumerate(names, 1)}

    def options(self) -> tuple[str, ...]:
        single = [part for name, port in self.single().items() for part in (name, str(port))]
        workers = ("--min-worker-port", str(self.workers[0]))
        return (*single, *workers, "--max-worker-port", str(self.workers[-1]))

    def taken(self, *, head: bool) -> list[int]:
        wanted = [*([self.head] if head else []), *self.single().values()]
        return [port for port in wanted if not is_free(port)]


def choose(before: int, free: Callable[[int], bool] | None = None) -> Ports:
    """Return the ports of a head: those of the last one if they are free, else the first free set.

    ``before``: the last head's first port; 0 if there is none.
    """
    is_usable = free or is_free
    for base in (*([before] if before else []), *_BASES):
        ports = Ports(base)
        if all(is_usable(port) for port in (ports.head, *ports.single().values())):
            return ports
    return Ports(before or DEFAULT_BASE)


_reserved: list[socket.socket] = []


def reserve() -> int:
    """Return the first of free ports for a node that joins; nobody else gets that one meanwhile.

    Such a node does not use its first port. This process holds it until it ends, and so does the
    program by which it replaces itself: nodes that start on one machine at once do not collide.
    """
    for base in _BASES:
        held = socket.socket()
        held.set_inheritable(True)
        try:
            held.bind(("", base))
        except OSError:
            held.close()
            continue
        _reserved.append(held)
        if not Ports(base).taken(head=False):
            return base
    return DEFAULT_BASE


def own_address(public_host: str | None) -> str:
    """Return the address of this machine that other nodes use.

    ``public_host``: the name or address by which they reach the server. If that is this machine's
    own address, Ray uses it, too; behind a proxy it is not.
    """
    if public_host is not None:
        try:
            found = socket.getaddrinfo(public_host, 0, socket.AF_INET, socket.SOCK_STREAM)
        except OSError:
            found = []
        for *_, address in found:
            if home.is_own(str(address[0])):
                return str(address[0])
    return route_address("10.255.255.255")


def route_address(target: str) -> str:
    """Return this machine's address on the route to ``target``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Connecting a datagram socket sends nothing; it only selects a route.
            probe.connect((target, 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Ray binds: a port in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


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


_SIOCGIFADDR = 0x8915


def addresses() -> dict[str, str]:
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def interface_of(address: str) -> str | None:
    return next((name for name, own in addresses().items() if own == address), None)


def network_environment(
    interface: str | None, node_ip: str, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables by which ranks of several nodes find each other.

    Gloo takes the address of the host's name by default, which is often a loopback address. NCCL
    chooses well by itself, and gets an interface only if one was named.
    """
    found = {}
    own = interface or interface_of(node_ip)
    if own is not None and "GLOO_SOCKET_IFNAME" not in given:
        found["GLOO_SOCKET_IFNAME"] = own
    if interface is not None and "NCCL_SOCKET_IFNAME" not in given:
        found["NCCL_SOCKET_IFNAME"] = interface
    return found
