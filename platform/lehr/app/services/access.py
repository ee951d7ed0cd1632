"""Create, list, rotate and revoke named tokens; list what people did."""

from __future__ import annotations

import math
import secrets

from lehr.app.presenters.streams import shared_fields
from lehr.app.services.context import Context
from lehr.base.access import NAME, RESERVED, Role
from lehr.errors import UserError, did_you_mean
from lehr.schemas.cluster import AuditEntry, AuditPage, CreatedToken, TokensView, TokenView
from lehr.store.tables import AccessTokenRow

PREFIX = "lehr_"  # Begins each named token, so that scanners of published code recognize one.
_DAY_S = 86_400.0
LONGEST_DAYS = 3_650


def list_tokens(context: Context) -> TokensView:
    tokens = context.store.access_tokens
    return TokensView(tokens=[_view(context, row) for row in tokens.all()])


def create_token(
    context: Context,
    name: str,
    role: str,
    expires_in_days: float | None,
    gpu_hours: float | None = None,
) -> CreatedToken:
    """Create a named token. Its value is in the answer, and nowhere else.

    Raises:
        UserError: the name, the role, the time or the budget is not valid, or there is such a
            token.
    """
    if not NAME.fullmatch(name) or name in RESERVED:
        reserved = f" {name!r} is the server's own." if name in RESERVED else ""
        raise UserError(
            f"{name!r} is not a name for a token.{reserved}",
            hint="Up to 40 small letters, digits, dots, dashes and underscores: anna-laptop.",
        )
    known = [one.value for one in Role]
    if role not in known:
        raise UserError(
            f"{role!r} is not a role. The roles are {', '.join(known)}.",
            hint=did_you_mean(role, known),
        )
    if expires_in_days is not None and not 0 < expires_in_days <= LONGEST_DAYS:
        raise UserError(
            f"expires_in_days is {expires_in_days:g}; it must be above 0 and at most "
            f"{LONGEST_DAYS}."
        )
    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        raise UserError(f"gpu_hours is {gpu_hours:g}; it must be a number above 0.")
    if gpu_hours is not None and role != Role.RESEARCHER:
        raise UserError(
            f"a token with a budget needs the role researcher, not {role}.",
            hint="A viewer launches nothing, and an admin can create tokens without a budget.",
        )
    token = PREFIX + secrets.token_urlsafe(32)
    now = context.store.clock()
    expires_at = None if expires_in_days is None else now + expires_in_days * _DAY_S
    row = context.store.access_tokens.create(name, role, token, expires_at, gpu_hours)
    return CreatedToken(**_view(context, row).model_dump(), token=token)


def rotate_token(context: Context, name: str) -> CreatedToken:
    """Replace the value of a token. The old one stops working at once.

    Raises:
        NotFound: there is none of that name.
        UserError: it is revoked or expired.
    """
    token = PREFIX + secrets.token_urlsafe(32)
    row = context.store.access_tokens.rotate(name, token)
    return CreatedToken(**_view(context, row).model_dump(), token=token)


def revoke_token(context: Context, name: str) -> TokenView:
    """End a token at once.

    Raises:
        NotFound: there is none of that name.
    """
    return _view(context, context.store.access_tokens.revoke(name))


def audit(
    context: Context, *, name: str | None, since: float | None, before: int | None, limit: int
) -> AuditPage:
    rows, total = context.store.audit.page(name=name, since=since, before=before, limit=limit)
    return AuditPage(
        items=[AuditEntry.model_validate(row, from_attributes=True) for row in rows],
        next_cursor=str(rows[-1].id) if len(rows) == limit else None,
        total=total,
    )


def _view(context: Context, row: AccessTokenRow) -> TokenView:
    expired = context.store.access_tokens.expired(row)
    state = "revoked" if row.revoked_at is not None else "expired" if expired else "valid"
    return TokenView(**shared_fields(row, TokenView), state=state)
