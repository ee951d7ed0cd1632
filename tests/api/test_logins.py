"""Logins of browsers end at their logout and after 30 days; links to log in work once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.cookies import SimpleCookie

import pytest

from lehr.base.access import Role
from lehr.errors import StoreUnavailable, Unauthorized
from lehr_api import auth
from lehr_api.logins import (
    LIFETIME_S,
    LINK_LIFETIME_S,
    MOST_LINKS_EACH,
    OWNER,
    EndedLogins,
    Login,
    LoginLinks,
    Person,
)
from lehr_testing.api import TOKEN, api_client


def test_logout_ends_the_login_on_the_server_and_no_other_one(tmp_path):
    with api_client(tmp_path) as (_, client):
        client.headers.pop("authorization")
        own = [browser(client) for _ in range(2)]
        assert [status(client, cookie) for cookie in own] == [200, 200]
        assert client.post("/logout", headers=own[0]).status_code == 303
        assert [status(client, cookie) for cookie in own] == [401, 200]
    with api_client(tmp_path) as (_, client):  # The server starts again.
        client.headers.pop("authorization")
        assert [status(client, cookie) for cookie in own] == [401, 200]


def test_login_ends_by_itself_on_the_server_too(api, monkeypatch):
    _, client = api
    client.headers.pop("authorization")
    cookie = browser(client)
    later = time.time() + LIFETIME_S
    monkeypatch.setattr(time, "time", lambda: later - 60)
    assert status(client, cookie) == 200
    monkeypatch.setattr(time, "time", lambda: later + 60)
    assert status(client, cookie) == 401
    # Its end cannot be changed, nor that of one of another form.
    name, _, value = cookie["Cookie"].partition("=")
    person, until, number, digest = value.split(":")
    for wrong in (f"{person}:{int(until) + 120}:{number}:{digest}", f"{person}:{digest}", "::::"):
        assert status(client, {"Cookie": f"{name}={wrong}"}) == 401


def browser(client):
    """Log in, and return the cookie as a header."""
    answer = client.post("/login", data={"token": TOKEN}, follow_redirects=False)
    client.cookies.clear()
    name = auth.Keys(TOKEN).cookie_name
    return {"Cookie": f"{name}={SimpleCookie(answer.headers['set-cookie'])[name].value}"}


def status(client, headers):
    return client.get("/api/v1/runs", headers=headers).status_code


def test_full_disk_still_ends_a_login_and_says_that_it_is_not_recorded(tmp_path):
    ended, login = EndedLogins(tmp_path / "gone"), Login.new(time.time())
    with pytest.raises(StoreUnavailable, match="No such file"):
        ended.end(login)
    assert not ended.valid(login)
    assert auth.still_valid(OWNER, None, ended)
    assert not auth.still_valid(replace(OWNER, login=login), None, ended)  # An open stream.


def test_login_link_is_used_once_even_at_the_same_time():
    links = LoginLinks()
    barrier = threading.Barrier(8)

    def take(code):
        barrier.wait()
        try:
            return links.take(code).name
        except Unauthorized:
            return None

    with ThreadPoolExecutor(8) as pool:
        for _ in range(50):
            code = links.make(OWNER)
            assert sorted(pool.map(take, [code] * 8), key=str) == [None] * 7 + ["user"]


def test_login_link_expires():
    now = 0.0
    links = LoginLinks(lambda: now)
    code, late = links.make(OWNER), links.make(OWNER)
    now = LINK_LIFETIME_S - 1
    assert links.take(code) == OWNER
    now = LINK_LIFETIME_S
    with pytest.raises(Unauthorized, match="was used or has expired"):
        links.take(late)


def test_links_of_one_person_end_nobody_elses():
    links = LoginLinks()
    viewer = Person("vera", Role.VIEWER, "0" * 64)
    first, *others = [links.make(viewer) for _ in range(3)]
    of_owner = links.make(OWNER)
    newest = [links.make(viewer) for _ in range(1_000)][-MOST_LINKS_EACH:]
    assert links.take(of_owner) == OWNER
    assert all(links.take(code) == viewer for code in newest)
    for code in (first, *others):
        with pytest.raises(Unauthorized):
            links.take(code)
    few = [links.make(viewer) for _ in range(MOST_LINKS_EACH - 1)]
    assert all(links.take(code) == viewer for code in few)
