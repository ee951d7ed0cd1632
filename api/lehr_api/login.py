"""Login: a browser sends the token once and gets a cookie derived from it, until the logout."""

from __future__ import annotations

import time
from typing import Annotated
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, Query
from fastapi import Request as FastAPIRequest
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from lehr.errors import Unauthorized
from lehr_api import auth
from lehr_api.dashboard.pages import local_target, login_page
from lehr_api.deps import ServicesDep
from lehr_api.logins import LIFETIME_S, Login, Person
from lehr_api.services import Services

router = APIRouter(include_in_schema=False)


@router.get("/login")
async def show(
    request: FastAPIRequest,
    services: ServicesDep,
    target: Annotated[str | None, Query(alias="next")] = None,
    code: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """Show the form; a logged-in browser is redirected."""
    keys = auth.Keys(services.settings.token)
    cookie = auth.cookie_value(request.headers, keys)
    known, ended = services.store.access_tokens, services.ended_logins
    if cookie is not None and auth.person_of_cookie(cookie, keys, known, ended) is not None:
        return RedirectResponse(local_target(target), 303)
    return login_page(target, code=code)


@router.post("/login")
async def log_in(request: FastAPIRequest, services: ServicesDep) -> Response:
    """Log in from the form. That of a login link has its code in place of the token."""
    token, code, target = await _fields(request)
    try:
        if code:
            person = services.login_links.take(code)
        else:
            keys = auth.Keys(services.settings.token)
            person = auth.person_with(token, keys, services.store.access_tokens)
    except Unauthorized as error:
        text = f"{error.message[0].upper()}{error.message[1:]}"
        return login_page(target, error=text, status=401)
    answer = RedirectResponse(local_target(target), 303)
    _set_cookie(answer, request, services, person)
    return answer


@router.post("/logout")
async def log_out(request: FastAPIRequest, services: ServicesDep) -> Response:
    login = request.state.person.login
    if login is not None:
        await to_thread.run_sync(services.ended_logins.end, login)
    answer = RedirectResponse("/login", 303)
    name = auth.Keys(services.settings.token).cookie_name
    answer.delete_cookie(name, httponly=True, samesite="lax", secure=_is_https(request))
    return answer


async def _fields(request: Request) -> tuple[str, str, str | None]:
    """Return the token, the code of a login link in its place, and the page to open afterwards."""
    body = await request.body()
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    token, code = (fields.get(name, [""])[0].strip() for name in ("token", "code"))
    return token, code, fields.get("next", [None])[0]


def _set_cookie(answer: Response, request: Request, services: Services, person: Person) -> None:
    keys = auth.Keys(services.settings.token)
    answer.set_cookie(
        keys.cookie_name,
        keys.cookie_of(person, Login.new(time.time())),
        max_age=LIFETIME_S,
        httponly=True,
        # Lax, so that a link to a run in a message opens it. Pages of other sites gain nothing:
        # every request's origin is checked.
        samesite="lax",
        secure=_is_https(request),
    )


def _is_https(request: Request) -> bool:
    return request.url.scheme == "https"
