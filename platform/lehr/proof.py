"""The proof that a server has a token, checked before a client sends the token.

The client sends ``GET /api/v1/health?nonce=...`` without the token. The server answers with an HMAC
under its token, over the nonce and the address at which the connection reached it. The client
computes the same over the address that it is connected to. So a program that took the port of an
ended server gets no token, and cannot forward the request to another server either.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress


def prove(token: str, nonce: str, host: str, port: int) -> str:
    """Return the answer to ``nonce`` over a connection to this address."""
    text = f"lehr server 1\n{nonce}\n{_plain(host)} {port}"
    return hmac.new(token.encode(), text.encode(), hashlib.sha256).hexdigest()


def holds(proof: str, token: str, nonce: str, host: str, port: int) -> bool:
    """Return whether ``proof`` is the answer of a server that has the token."""
    right = prove(token, nonce, host, port)
    return hmac.compare_digest(proof.encode("utf-8", "replace"), right.encode())


def _plain(host: str) -> str:
    """Normalize an address: a server that listens on IPv6 sees ::ffff:127.0.0.1."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
