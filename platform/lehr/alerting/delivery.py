"""Post a message to an address, never to one inside the network of the server.

A webhook's address comes from a user, and the server may reach what that user may not: a cloud's
metadata service, a router, another service on loopback. So the host is resolved once, each of its
addresses must be public, and the connection goes to that very address: a name that resolves to
another one a moment later changes nothing. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from lehr.errors import LehrError

TIMEOUT_S = 10.0
"""For all of a delivery: the lookup of the host, the connection, and the answer's first lines."""
LOOKUPS = 8
"""Hosts that are looked up at a time. A lookup cannot be interrupted, so each takes a thread."""
_LOOKUPS = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="webhook-lookup")
_TRANSLATED = tuple(
    map(ipaddress.ip_network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16"))
)
"""IPv6 networks whose addresses contain an IPv4 address, public or not."""


class Undelivered(LehrError):
    """A message did not arrive. ``again``: whether a later try may succeed."""

    code = "undelivered"
    status = 502

    def __init__(self, message: str, *, hint: str | None = None, again: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.again = again


def post(url: str, body: Mapping[str, Any], *, allowed_hosts: Collection[str] = ()) -> None:
    """Deliver a message and wait for the answer (``deliver``)."""
    asyncio.run(deliver(url, body, allowed_hosts=allowed_hosts))


async def deliver(
    url: str, body: Mapping[str, Any], *, allowed_hosts: Collection[str] = ()
) -> None:
    """Post ``body`` as JSON. Takes ``TIMEOUT_S`` at most, whatever the receiver does.

    Args:
        url: of http or https.
        body: the message.
        allowed_hosts: hosts that may have an address inside the network.

    Raises:
        Undelivered: the address is not public, or the answer's status is not 2xx.
    """
    host = httpx.URL(url).host
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answer = await _post(url, body, internal_allowed=host in allowed_hosts)
    except TimeoutError as error:
        raise Undelivered(f"{host} did not answer within {TIMEOUT_S:g} s.", again=True) from error
    except httpx.HTTPError as error:
        raise Undelivered(f"{host} did not answer: {error}.", again=True) from error
    if answer.is_redirect:
        raise Undelivered(f"{host} answered with a redirect; they are not followed.")
    if not answer.is_success:
        again = answer.status_code == 429 or answer.status_code >= 500
        raise Undelivered(f"{host} answered {answer.status_code}.", again=again)


async def _post(url: str, body: Mapping[str, Any], *, internal_allowed: bool) -> httpx.Response:
    """Return the answer without its body, which has no meaning here and may have no end."""
    address = httpx.URL(url)
    port = address.port or (443 if address.scheme == "https" else 80)
    pinned = await _public_address(address.host, port, internal_allowed=internal_allowed)
    client = httpx.AsyncClient(timeout=None, follow_redirects=False, trust_env=False)  # noqa: S113 - the caller has one for all of it
    async with (
        client,
        client.stream(
            "POST",
            address.copy_with(host=pinned),
            json=dict(body),
            headers={"Host": address.netloc.decode("ascii")},
            extensions={"sni_hostname": address.host},
        ) as answer,
    ):
        return answer


async def _public_address(host: str, port: int, *, internal_allowed: bool) -> str:
    """Resolve the host; return the first of its addresses.

    Raises:
        Undelivered: it has none, or one that is not public.
    """
    try:
        found = await asyncio.get_running_loop().run_in_executor(
            _LOOKUPS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
    except (OSError, UnicodeError) as error:
        raise Undelivered(f"the host {host!r} is not known: {error}.", again=True) from error
    addresses = [str(one[4][0]) for one in found]
    if not internal_allowed:
        for address in addresses:
            if not is_public(address):
                raise Undelivered(
                    f"{host} is {address}, an address inside the server's network.",
                    hint="If messages may go there, name the host in LEHR_WEBHOOK_HOSTS and "
                    "restart the server.",
                )
    return addresses[0]


def is_public(address: str) -> bool:
    """Return whether an IP address belongs to the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if any(ip in network for network in _TRANSLATED):
            return False
    return ip.is_global and not ip.is_multicast
