"""Named tokens, the audit, and login links."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import ConfigDict, Field

from lehr.schemas.access import AuditPage, CreatedToken, LoginLink, TokensView, TokenView
from lehr.services import access
from lehr_api import auth
from lehr_api.deps import Cursor, Limit, ServicesDep
from lehr_api.login_links import LIFETIME_S
from lehr_api.responses import problem_responses
from lehr_trainer.configs.documented import Documented

router = APIRouter(tags=["access"])

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$", examples=["anna-laptop"])]


class TokenRequest(Documented):
    """A token to create."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=200, examples=["anna-laptop"])
    """Up to 40 small letters, digits, dots, dashes and underscores."""
    role: str = Field(max_length=40, examples=["researcher"])
    """viewer: reads. researcher: also submits, changes and ends runs. admin: everything."""
    expires_in_days: float | None = Field(default=None, examples=[90.0])
    """When it ends, in days from now; null: never."""


@router.get("/tokens", responses=problem_responses())
def list_tokens(services: ServicesDep) -> TokensView:
    """Return the named tokens by name, also revoked and expired ones; never their values."""
    return access.list_tokens(services)


@router.post("/tokens", status_code=201, responses=problem_responses(422))
def create_token(body: TokenRequest, services: ServicesDep) -> CreatedToken:
    """Create a named token. Its value is in this answer only."""
    return access.create_token(services, body.name, body.role, body.expires_in_days)


@router.post("/tokens/{name}/rotate", responses=problem_responses(404, 422))
def rotate_token(name: Name, services: ServicesDep) -> CreatedToken:
    """Replace the value of a token; only this answer has it. The old one stops working at once."""
    return access.rotate_token(services, name)


@router.delete("/tokens/{name}", responses=problem_responses(404))
def revoke_token(name: Name, services: ServicesDep) -> TokenView:
    """Revoke a token. It and the logins made with it end at once. Idempotent."""
    return access.revoke_token(services, name)


@router.get("/audit", responses=problem_responses())
def audit(
    services: ServicesDep,
    name: Annotated[
        str | None, Query(description="Only requests with this token.", max_length=40)
    ] = None,
    since: Annotated[
        float | None, Query(description="Only from this time on, in seconds since the epoch.")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> AuditPage:
    """Return the requests that changed something or were refused, newest first."""
    before = None if cursor is None else int(cursor)
    return access.audit(services, name=name, since=since, before=before, limit=limit)


@router.post("/login-links", status_code=201, responses=problem_responses())
def make_login_link(request: Request, services: ServicesDep) -> LoginLink:
    """Make an address that logs a browser in as the caller: once, within five minutes."""
    person: auth.Person = request.state.person
    code = services.login_links.make(person)
    return LoginLink(
        url=f"{services.settings.url}/login?code={code}", expires_at=time.time() + LIFETIME_S
    )
