"""Authentication: tokens, the browser's cookie, and the host names that requests may use.

Users send the home's token or a named one, as ``Authorization: Bearer`` or, in a browser, as a
cookie derived from it. A worker sends the token of its attempt, which opens that attempt's routes
and nothing else; no user's token opens those.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

from fastapi.params import Depends
from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser

from lehr.base import access, signed_tokens
from lehr.base.access import Role
from lehr.base.signed_tokens import NodeToken
from lehr.errors import Forbidden, Unauthorized
from lehr.store.records.access_tokens import AccessTokenRecords
from lehr.store.tables import AccessTokenRow
from lehr_api.logins import OWNER, EndedLogins, Login, Person
from lehr_api.problems import CrossOrigin, WrongHost
from lehr_api.settings import Settings

API = "/api/v1"
NODE_PATHS = frozenset({f"{API}/cluster/join", f"{API}/cluster/leave"})
"""Paths that a machine's token opens, and a person's, too (``lehr.base.signed_tokens``)."""
OPEN_PATHS = frozenset({f"{API}/health", "/login"})
OPEN_PREFIXES = ("/static/",)
"""Paths that answer without a token. A test walks all routes and compares them with this list."""
AGENTS = "/mcp"
"""The path of the tools for agents (``lehr_api.agents``)."""
_ATTEMPTS = f"{API}/attempts/"


def takes_file(path: str) -> bool:
    """Return whether the path takes a capsule or a bundle, whose body may be large."""
    return path.startswith(f"{API}/code/") or path == f"{API}/bundles"


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)


def attempt_of(path: str) -> str | None:
    """Return the attempt of a path, if it is one of an attempt's routes."""
    if not path.startswith(_ATTEMPTS):
        return None
    return path[len(_ATTEMPTS) :].partition("/")[0]


@dataclass(frozen=True)
class Keys:
    """The home's token and the cookies derived from it."""

    token: str

    @property
    def cookie_name(self) -> str:
        """Return the cookie's name, unique per server: a browser sends cookies to all ports of a
        host, and two servers with one name would log each other out.
        """
        digest = hmac.new(self.token.encode(), b"lehr cookie name 1", hashlib.sha256)
        return f"lehr_{digest.hexdigest()[:16]}"

    def opens(self, given: str) -> bool:
        return _same(given, self.token)

    def cookie_of(self, person: Person, login: Login) -> str:
        """Return the value of the cookie with which a browser is logged in as this person.

        The token cannot be computed from it.
        """
        text = f"lehr cookie 3\n{person.name}\n{person.sha256}\n{login.until}\n{login.number}"
        digest = hmac.new(self.token.encode(), text.encode(), hashlib.sha256).hexdigest()
        return f"{person.name}:{login.until}:{login.number}:{digest}"


def check_person(
    headers: Headers, keys: Keys, tokens: AccessTokenRecords, ended: EndedLogins
) -> Person:
    """Return whom the request comes from.

    Raises:
        Unauthorized: it has neither a valid token nor the cookie of one.
    """
    bearer = bearer_token(headers)
    if bearer is not None:
        return person_with(bearer, keys, tokens)
    cookie = cookie_value(headers, keys)
    if cookie is None:
        raise Unauthorized("a token is required.", hint=_TOKEN_HINT)
    found = person_of_cookie(cookie, keys, tokens, ended)
    if found is None:
        raise Unauthorized("the login is no longer valid.", hint="Log in again at /login.")
    return found


def person_with(token: str, keys: Keys, tokens: AccessTokenRecords) -> Person:
    """Return whose token it is.

    Raises:
        Unauthorized: it is not a token of this server, or no longer valid.
    """
    if keys.opens(token):
        return OWNER
    row = tokens.of_token(token)
    if row is None:
        raise Unauthorized("the token is not this server's.", hint=_TOKEN_HINT)
    if not tokens.valid(row):
        why = "revoked" if row.revoked_at is not None else "expired"
        raise Unauthorized(
            f"the token {row.name!r} is {why}.", hint="An admin of the server can create a new one."
        )
    return _person(row)


def person_of_cookie(
    cookie: str, keys: Keys, tokens: AccessTokenRecords, ended: EndedLogins
) -> Person | None:
    """Return who is logged in with this cookie; None if it is not valid, or no longer."""
    parts = _COOKIE.fullmatch(cookie)
    if parts is None:
        return None
    person, login = OWNER, Login(parts[3], int(parts[2]))
    if parts[1] != OWNER.name:
        row = tokens.of_name(parts[1])
        if row is None or not tokens.valid(row):
            return None
        person = _person(row)
    right = _same(cookie, keys.cookie_of(person, login)) and ended.valid(login)
    return replace(person, login=login) if right else None


_COOKIE = re.compile(r"([^:]+):([0-9]{1,15}):([0-9a-f]{32}):[0-9a-f]{64}", re.ASCII)


def still_valid(person: Person, tokens: AccessTokenRecords, ended: EndedLogins) -> bool:
    """Return whether the token or the login of an open connection is valid as before."""
    if person.login is not None and not ended.valid(person.login):
        return False
    if person.sha256 is None:
        return True
    row = tokens.of_name(person.name)
    return row is not None and tokens.valid(row) and _person(row) == person


@dataclass(frozen=True)
class Policy:
    """The roles that a route needs, as a dependency of it. The guard has authenticated already."""

    reading: Role | None
    """None: no person asks. The route is open to all, or to the token of an attempt."""
    changing: Role | None
    or_node: bool = False
    """Whether the token of a machine opens it, too."""

    async def __call__(self, request: Request) -> None:
        """Refuse the request of a person whose role is lower.

        Raises:
            Forbidden: the role does not include the request.
        """
        needed = self.needed(request.method)
        person: Person | None = getattr(request.state, "person", None)
        if needed is None or (person is None and self.or_node):
            return
        assert person is not None, request.url.path
        if not person.role.includes(needed):
            raise Forbidden(
                f"this needs the role {needed}; the token {person.name!r} has the role "
                f"{person.role}.",
                hint="An admin of the server can create another token: lehr admin token create",
            )

    def needed(self, method: str) -> Role | None:
        return self.reading if method in access.READING else self.changing


def needs(reading: Role | None, changing: Role | None = None, *, or_node: bool = False) -> Depends:
    """Return a dependency for routes: the lowest role to read, and to change if it differs."""
    return Depends(Policy(reading, changing or reading, or_node))


def policy_of(dependencies: Sequence[Depends]) -> Policy | None:
    """Return the policy among the dependencies of a route."""
    policies = (one.dependency for one in dependencies if isinstance(one.dependency, Policy))
    return next(policies, None)


def _person(row: AccessTokenRow) -> Person:
    return Person(row.name, Role(row.role), row.sha256)


def check_node(headers: Headers, keys: Keys, *, now: float) -> NodeToken | None:
    """Return what a machine's token is valid for; None if the request has another token.

    Raises:
        Unauthorized: the machine's token is invalid or has expired.
    """
    bearer = bearer_token(headers)
    if bearer is None or not signed_tokens.looks_like_one(bearer):
        return None
    found = signed_tokens.check(keys.token, bearer, now=now)
    if found is None:
        expired = signed_tokens.expired(keys.token, bearer, now=now)
        raise Unauthorized(
            "the token to join has expired." if expired else "the token is not this server's.",
            hint="On the server's machine, lehr node token prints a new one.",
        )
    return found


def check_attempt(headers: Headers, token_sha256: str | None) -> None:
    """Raise Unauthorized unless the request has the token with this digest.

    An unknown attempt (None) gets the same answer as a wrong token.
    """
    bearer = bearer_token(headers)
    if bearer is None:
        raise Unauthorized(
            "the attempt's token is required, as the header Authorization: Bearer TOKEN."
        )
    digest = hashlib.sha256(bearer.encode("utf-8", "surrogateescape")).hexdigest()
    if token_sha256 is None or not _same(digest, token_sha256):
        raise Unauthorized("the token is not this attempt's.")


def bearer_token(headers: Headers) -> str | None:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def cookie_value(headers: Headers, keys: Keys) -> str | None:
    # Lenient: other servers of this machine share the browser's cookies, and theirs may be
    # malformed.
    return cookie_parser(headers.get("cookie", "")).get(keys.cookie_name)


def own_names(settings: Settings) -> frozenset[str]:
    """Return the names by which requests may address this server; ``check_host`` judges
    addresses.
    """
    names = {"localhost", *(name.lower() for name in settings.allowed_hosts)}
    names.add(settings.host.lower())
    if settings.public_url:
        names.add((urlsplit(settings.public_url).hostname or "").lower())
    if not settings.loopback:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names - {""})


def check_host(headers: Headers, names: frozenset[str], *, loopback: bool) -> None:
    """Raise WrongHost when the request addresses the server by an unknown name.

    A page of another site can make its own DNS name point here and so share this origin; it cannot
    do so with an address. So addresses pass; on loopback, only loopback addresses.
    """
    hosts = headers.getlist("host")
    if len(hosts) > 1:  # A proxy and this server could each believe another one (RFC 9112, 3.2).
        raise WrongHost(f"the request names {len(hosts)} hosts.", hint="Send one Host header.")
    host = hosts[0] if hosts else ""
    if len(host) > _LONGEST_HOST or not _is_own_host(host, names, loopback):
        raise WrongHost(
            f"{host[:_LONGEST_HOST]!r} is not a host name of this server.",
            hint="To allow it, on the server's machine: lehr down --keep-runs, then lehr up "
            "--allowed-host NAME and its other options",
        )


_LONGEST_HOST = 300
"""A DNS name has at most 253 characters, and a port six."""


@lru_cache(maxsize=256)
def _is_own_host(host: str, names: frozenset[str], loopback: bool) -> bool:
    name = _hostname(host)
    if name is None or name in names:
        return name is not None
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or not loopback


def check_origin(headers: Headers, method: str, scheme: str) -> None:
    """Raise CrossOrigin when a page of another origin sent the request.

    ``Origin`` must be this server's own if it is sent. A page by plain HTTP is not that of a server
    with TLS. (The reverse may be one: a proxy with TLS need not name its scheme.) Requests without
    an origin (images, scripts) are judged by ``Sec-Fetch-Site``; following a link to a page is
    allowed.
    """
    origin = headers.get("origin")
    if origin is not None:
        try:
            page = urlsplit(origin)
            own = page.netloc.lower() == headers.get("host", "").lower()
            own &= page.scheme == "https" or scheme not in {"https", "wss"}
        except ValueError:  # E.g. a bracket that is not closed.
            own = False
        if not own or origin == "null":
            raise CrossOrigin(f"a page of {origin} may not send requests to this server.")
        return
    site = headers.get("sec-fetch-site", "none")
    opens_page = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
    if site not in {"none", "same-origin"} and not opens_page:
        raise CrossOrigin("a page of another site may not send requests to this server.")


_HOST = re.compile(r"([\w.-]+|\[[0-9a-f:.]+(?:%\w+)?\])(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


def _hostname(host: str) -> str | None:
    """Return the name or address of a Host header, without its port (RFC 9110, 7.2)."""
    found = _HOST.fullmatch(host)
    return None if found is None else found[1].strip("[]").lower()


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(
        given.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape")
    )


_TOKEN_HINT = "It is in the file `token` of Lehr's home; or set LEHR_TOKEN."  # noqa: S105 - no token
