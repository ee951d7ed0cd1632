"""Network interfaces of this machine, their IPv4 addresses, and which one trainings use."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping

_SIOCGIFADDR = 0x8915


def addresses() -> dict[str, str]:
    """Return the address of each interface that has one."""
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
    """Return the interface that has the address."""
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
