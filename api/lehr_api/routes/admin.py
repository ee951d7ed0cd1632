"""What an admin manages: tokens, the audit, login links, quotas and secrets."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from pydantic import ConfigDict, Field, SecretStr

from lehr.app.alerting.push import Device
from lehr.app.services import access
from lehr.app.services.budget import budget
from lehr.base.access import Role, current_actor
from lehr.schemas.cluster import (
    AuditPage,
    BudgetView,
    CreatedToken,
    LoginLink,
    PushView,
    QuotasView,
    QuotaView,
    SecretsView,
    SecretView,
    TokensView,
    TokenView,
)
from lehr.store.secret_store import SecretStore
from lehr_api.auth import needs
from lehr_api.deps import Cursor, Limit, RequestBody, ServicesDep
from lehr_api.logins import LINK_LIFETIME_S, Person
from lehr_api.problems import problem_responses

router = APIRouter(tags=["admin"])
_ALL = [needs(Role.VIEWER)]
_ADMIN = [needs(Role.ADMIN)]

Name = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$", examples=["anna-laptop"])]
Project = Annotated[str, Path(max_length=200, examples=["ablations"])]
SecretName = Annotated[str, Path(max_length=200, examples=["hf-read"])]


class TokenRequest(RequestBody):
    """A token to create."""

    name: str = Field(max_length=200, examples=["anna-laptop"])
    """Up to 40 small letters, digits, dots, dashes and underscores."""
    role: str = Field(max_length=40, examples=["researcher"])
    """viewer: reads. researcher: also submits, changes and ends runs. admin: everything."""
    expires_in_days: float | None = Field(default=None, examples=[90.0])
    """When it ends, in days from now; null: never."""
    gpu_hours: float | None = Field(default=None, examples=[20.0])
    """The budget: what its runs may use in all; null: no limit. For the role researcher."""


class QuotaRequest(RequestBody):
    """The quota of a project."""

    model_config = ConfigDict(strict=True)

    gpus: int = Field(ge=0, le=1_000_000, examples=[16])
    """The most GPUs that its runs hold at a time. 0: none of its runs starts on GPUs."""


class SecretRequest(RequestBody):
    """The value of a secret."""

    value: SecretStr = Field(examples=["hf_read_only"])
    """The value, at most 32,768 bytes."""


class Subscription(RequestBody):
    """A browser's push subscription, as its ``toJSON`` returns it."""

    model_config = ConfigDict(extra="ignore")

    endpoint: str = Field(max_length=2000, examples=["https://hooks.example.com/c1"])
    """Address of the push service of its maker."""
    keys: dict[str, str] = Field(examples=[{"p256dh": "BCVxsr7N", "auth": "BTBZMqHH6r4Tts"}])
    """Its public key ``p256dh`` and its secret ``auth``, base64url."""


@router.get("/budget", dependencies=_ALL)
def get_budget(request: Request, services: ServicesDep) -> BudgetView:
    """Return what the runs of the caller's token have used, and its budget if it has one."""
    person: Person = request.state.person
    return budget(services, person.name)


@router.get("/tokens", dependencies=_ADMIN)
def list_tokens(services: ServicesDep) -> TokensView:
    """Return the named tokens by name, also revoked and expired ones; never their values."""
    return access.list_tokens(services)


@router.post("/tokens", dependencies=_ADMIN, status_code=201)
def create_token(body: TokenRequest, services: ServicesDep) -> CreatedToken:
    """Create a named token. Its value is in this answer only."""
    return access.create_token(services, body.name, body.role, body.expires_in_days, body.gpu_hours)


@router.post("/tokens/{name}/rotate", dependencies=_ADMIN, responses=problem_responses(404))
def rotate_token(name: Name, services: ServicesDep) -> CreatedToken:
    """Replace the value of a token; only this answer has it. The old one stops working at once."""
    return access.rotate_token(services, name)


@router.delete("/tokens/{name}", dependencies=_ADMIN, responses=problem_responses(404))
def revoke_token(name: Name, services: ServicesDep) -> TokenView:
    """Revoke a token. It and the logins made with it end at once. Idempotent."""
    return access.revoke_token(services, name)


@router.get("/audit", dependencies=_ADMIN)
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


@router.post("/login-links", dependencies=_ALL, status_code=201)
def make_login_link(request: Request, services: ServicesDep) -> LoginLink:
    """Make an address that logs a browser in as the caller: once, within five minutes."""
    person: Person = request.state.person
    code = services.login_links.make(person)
    return LoginLink(
        url=f"{services.settings.url}/login?code={code}", expires_at=time.time() + LINK_LIFETIME_S
    )


@router.get("/quotas", dependencies=_ALL)
def list_quotas(services: ServicesDep) -> QuotasView:
    """Return the quotas by project. A project without one has no limit."""
    rows = services.store.quotas.all()
    return QuotasView(quotas=[QuotaView.model_validate(row, from_attributes=True) for row in rows])


@router.put("/quotas/{project}", dependencies=_ADMIN)
def set_quota(project: Project, body: QuotaRequest, services: ServicesDep) -> QuotaView:
    """Set the quota of a project. Running runs continue, even if they hold more."""
    row = services.store.quotas.put(project, body.gpus, actor=current_actor())
    services.dispatcher.wake()
    return QuotaView.model_validate(row, from_attributes=True)


@router.delete("/quotas/{project}", dependencies=_ADMIN, responses=problem_responses(404))
def remove_quota(project: Project, services: ServicesDep) -> QuotaView:
    """Remove the quota of a project: its runs have no limit."""
    row = services.store.quotas.remove(project)
    services.dispatcher.wake()
    return QuotaView.model_validate(row, from_attributes=True)


@router.get("/secrets", dependencies=_ALL)
def list_secrets(services: ServicesDep) -> SecretsView:
    """Return the secrets by name, never their values; of a webhook, whether messages arrive."""
    results, secrets = services.sender.results, SecretStore(services.home).all()
    views = [SecretView(**vars(one), last_message=results.get(one.name)) for one in secrets]
    return SecretsView(secrets=views)


@router.put("/secrets/{name}", dependencies=_ADMIN)
def set_secret(name: SecretName, body: SecretRequest, services: ServicesDep) -> SecretView:
    """Set a secret, old or new. No answer ever has its value."""
    value, now = body.value.get_secret_value(), services.store.clock()
    secret = SecretStore(services.home).set(name, value, by=current_actor(), at=now)
    return SecretView.model_validate(secret, from_attributes=True)


@router.delete("/secrets/{name}", dependencies=_ADMIN, responses=problem_responses(404))
def remove_secret(name: SecretName, services: ServicesDep) -> SecretView:
    """Remove a secret. A run that names it fails with the reason if it starts later."""
    secret = SecretStore(services.home).remove(name)
    return SecretView.model_validate(secret, from_attributes=True)


@router.get("/push", dependencies=_ALL)
def push_key(services: ServicesDep) -> PushView:
    """Return the key with which a browser subscribes to messages of this server."""
    return PushView(public_key=services.sender.devices.public_key)


@router.put("/push", dependencies=_ALL, responses=problem_responses(422))
def subscribe(body: Subscription, request: Request, services: ServicesDep) -> PushView:
    """Send the browser each alert and end of the caller's runs, until it unsubscribes. Idempotent.

    The first message comes at once. A push service says when a browser has unsubscribed.
    """
    person: Person = request.state.person
    p256dh, auth = body.keys.get("p256dh", ""), body.keys.get("auth", "")
    device = Device(person.name, body.endpoint, p256dh, auth, services.store.clock())
    name = services.sender.devices.put(device)
    text = "Alerts and ends of your runs are shown here from now on."
    services.sender.put(name, {"event": "test", "text": text})
    return push_key(services)
