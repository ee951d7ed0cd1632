"""Authorization: requests need the token, and a worker's token is valid only for its attempt."""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Iterator
from http.cookies import SimpleCookie
from pathlib import Path

import httpx
import pytest
from starlette.datastructures import Headers

from lehr_api import auth
from lehr_api.logins import OWNER, Login
from lehr_api.middleware import OPEN_LIMIT
from lehr_api.problems import CrossOrigin
from lehr_testing.api import BASE, RUN_SPEC, TOKEN, api_client, attempt_token, begin, served
from lehr_testing.routes import concrete, walk

PROTOCOL = {"Lehr-Protocol": "1"}


def test_every_route_answers_401_without_a_token_except_the_allowlist(api):
    _, client = api
    client.headers.pop("authorization")
    seen, opened = set(), set()
    for path, method in walk(client.app.routes):
        answer = client.request(method, concrete(path))
        seen.add(path)
        if answer.status_code != 401:
            opened.add((path, answer.status_code))
    assert len(seen) > 25
    assert {"/api/v1/runs", "/api/v1/stream", "/", "/api/v1/openapi.json"} <= seen
    strangers = {
        path for path, _ in opened if path not in auth.OPEN_PATHS and not path.startswith("/static")
    }
    assert strangers == set()
    assert "/login" in {path for path, _ in opened}


def test_unknown_attempts_and_wrong_tokens_get_the_same_answer(client):
    client.headers.pop("authorization")
    for path in ("/api/v1/nothing", "/nothing", "/api/v1/attempts/none-1/streams"):
        assert client.get(path).status_code == 401


@pytest.mark.parametrize(
    "path", ["/api/v1/health/../runs", "/static/../api/v1/runs", "//api/v1/runs", "/api/v1/health/"]
)
def test_path_that_resembles_an_open_one_needs_a_token(client, path):
    client.headers.pop("authorization")
    answer = client.get(path)
    assert answer.status_code in {401, 404}
    assert "items" not in answer.text


@pytest.mark.parametrize(
    "header",
    [
        "Bearer wrong",
        "Bearer ",
        "Bearer",
        f"Basic {base64.b64encode(TOKEN.encode()).decode()}",
        TOKEN,
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
    ],
)
def test_wrong_token_is_rejected_with_the_place_of_the_right_one(client, header):
    answer = client.get("/api/v1/runs", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.json()["code"] == "unauthorized"
    assert "token" in answer.json()["hint"]
    assert TOKEN not in answer.text


def test_wrong_token_is_rejected_despite_a_valid_cookie(client):
    cookie = auth.Keys(TOKEN).cookie_of(OWNER, Login.new(time.time()))
    client.cookies.set(auth.Keys(TOKEN).cookie_name, cookie)
    assert client.get("/api/v1/runs", headers={"Authorization": "Bearer no"}).status_code == 401


def test_token_of_an_attempt_allows_only_its_own_streams(store, client):
    one = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    two = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    first, second = begin(store, one), begin(store, two)
    own = {"Authorization": f"Bearer {attempt_token(one)}", **PROTOCOL}
    assert client.get(f"/api/v1/attempts/{first}/streams", headers=own).status_code == 200
    assert client.get(f"/api/v1/attempts/{second}/streams", headers=own).status_code == 401
    put = client.put(
        f"/api/v1/attempts/{second}/streams/events.jsonl?offset=0", content=b"x", headers=own
    )
    assert put.status_code == 401
    assert store.streams.sizes(second) == {}
    for path in ("/api/v1/runs", f"/api/v1/runs/{one}", "/api/v1/cluster", "/"):
        assert client.get(path, headers=own).status_code == 401
    assert client.post(f"/api/v1/runs/{one}/cancel", headers=own).status_code == 401


def test_user_token_is_not_valid_for_an_attempt(store, client):
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
    attempt = begin(store, run)
    assert client.get(f"/api/v1/attempts/{attempt}/streams", headers=PROTOCOL).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "",
        "[::1",
        "8.8.8.8",
        "127.0.0.1#.evil.example",
        "evil.example:80@127.0.0.1",
        "127.0.0.1/evil.example",
        "127.0.0.1?a",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_foreign_host_name_is_rejected_for_every_method(client, host, method):
    answer = client.request(method, "/api/v1/health", headers={"Host": host})
    assert answer.status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:5347", "localhost:5347", "127.0.0.1", "[::1]:5347"])
def test_own_host_names_are_accepted(client, host):
    assert client.get("/api/v1/health", headers={"Host": host}).status_code == 200


def test_configured_host_name_is_accepted(tmp_path):
    with api_client(tmp_path, allowed_hosts=("lehr.example",)) as (_, client):
        headers = {"Host": "lehr.example"}
        assert client.get("/api/v1/health", headers=headers).status_code == 200


@pytest.mark.parametrize("hosts", [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "evil.example")])
def test_request_that_names_two_hosts_is_rejected(client, hosts):
    answer = client.get("/api/v1/health", headers=[("Host", host) for host in hosts])
    assert answer.status_code == 421
    assert "names 2 hosts" in answer.json()["detail"]


def test_a_host_that_was_judged_is_judged_anew_for_other_settings():
    """The verdict is kept, and with it what it depends on."""

    def passes(names, *, loopback):
        try:
            auth.check_host(
                Headers({"host": "192.0.2.7:5347"}), frozenset(names), loopback=loopback
            )
        except auth.WrongHost:
            return False
        return True

    asked = [({"a"}, True), ({"a"}, False), ({"192.0.2.7"}, True), ({"a"}, True)]
    assert [passes(names, loopback=loopback) for names, loopback in asked] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:5347", "x", ""],
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_foreign_origin_is_rejected_for_every_method(client, origin, method):
    answer = client.request(method, "/api/v1/runs", headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("scheme", "origin", "passes"),
    [
        ("https", "https://lehr.example", True),
        ("https", "http://lehr.example", False),
        ("wss", "http://lehr.example", False),
        ("http", "http://lehr.example", True),
        ("http", "https://lehr.example", True),  # Behind a proxy that does not name its scheme.
    ],
)
def test_page_by_plain_http_is_not_that_of_a_server_with_tls(scheme, origin, passes):
    headers = Headers({"host": "lehr.example", "origin": origin})
    if passes:
        auth.check_origin(headers, "POST", scheme)
        return
    with pytest.raises(CrossOrigin):
        auth.check_origin(headers, "POST", scheme)


def test_own_origin_is_accepted(client):
    assert client.get("/api/v1/runs", headers={"Origin": BASE}).status_code == 200


def test_cross_site_request_is_rejected_but_a_link_works(client):
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert client.get("/api/v1/runs", headers=image).status_code == 403
    neighbour = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}
    assert client.get("/api/v1/runs", headers=neighbour).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200


def test_browser_login_sets_a_cookie_other_than_the_token_until_logout(client):
    client.headers.pop("authorization")
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    answer = client.post("/login", data={"token": TOKEN, "next": "/runs/abc?x=1"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/abc?x=1"
    cookie = SimpleCookie(answer.headers["set-cookie"])[auth.Keys(TOKEN).cookie_name]
    assert cookie["httponly"]
    assert cookie["samesite"].lower() == "lax"
    assert cookie["path"] == "/"
    assert TOKEN not in cookie.value
    assert client.get("/api/v1/runs").status_code == 200
    assert client.get("/login?next=/cluster").headers["location"] == "/cluster"
    # The cookie's value is no bearer token.
    bearer = {"Authorization": f"Bearer {cookie.value}"}
    assert client.get("/api/v1/runs", headers=bearer).status_code == 401
    assert client.post("/logout").status_code == 303
    assert client.get("/api/v1/runs").status_code == 401


def test_two_servers_on_one_host_have_separate_sessions(tmp_path):
    with (
        served(tmp_path / "a") as (_, first),
        served(tmp_path / "b", token="another-token") as (_, second),
        httpx.Client() as browser,  # One cookie jar; like that of a browser, it ignores ports.
    ):
        tokens = {first: TOKEN, second: "another-token"}
        for address, token in tokens.items():
            assert browser.post(f"{address}/login", data={"token": token}).status_code == 303
        for address in tokens:
            assert browser.get(f"{address}/api/v1/runs").status_code == 200
        browser.post(f"{first}/logout")
        assert browser.get(f"{first}/api/v1/runs").status_code == 401
        assert browser.get(f"{second}/api/v1/runs").status_code == 200


def test_malformed_foreign_cookie_does_not_end_the_session(client):
    client.headers.pop("authorization")
    keys = auth.Keys(TOKEN)
    cookie = keys.cookie_of(OWNER, Login.new(time.time()))
    cookie = f'theirs={{"a": "b; c"}}; x y z; {keys.cookie_name}={cookie}; =; ;'
    assert client.get("/api/v1/runs", headers={"Cookie": cookie}).status_code == 200
    for wrong in ("x", "", TOKEN):
        headers = {"Cookie": f"{keys.cookie_name}={wrong}"}
        assert client.get("/api/v1/runs", headers=headers).status_code == 401


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example"])
def test_login_redirects_only_to_this_server(client, target):
    answer = client.post("/login", data={"token": TOKEN, "next": target})
    assert answer.headers["location"] == "/"


def test_login_that_is_cut_off_is_no_failure_of_the_server(client, caplog):
    messages = [
        {"type": "http.request", "body": b"token=", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/login",
        "raw_path": b"/login",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1"), (b"content-length", b"100")],
        "scheme": "http",
        "state": {},
    }
    with caplog.at_level(logging.ERROR):
        client.portal.call(client.app, scope, receive, send)
    assert (messages, sent, caplog.messages) == ([], [], [])


def test_a_login_from_another_origin_is_refused(client):
    answer = client.post("/login", data={"token": TOKEN}, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/health", "/", "/login", "/nothing"])
def test_every_answer_carries_the_security_headers(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"


def test_interactive_api_pages_are_disabled(client):
    for path in ("/docs", "/redoc"):
        assert client.get(path).status_code == 404


def test_origin_that_is_no_address_is_refused(api):
    answer = api[1].get("/api/v1/runs", headers={"Origin": "http://["})
    assert answer.status_code == 403


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as (_, url):
        yield url


@pytest.mark.parametrize("size", ["stated", "pieces"])
def test_login_has_a_small_limit(url: str, size: str) -> None:
    body = b"x" * (OPEN_LIMIT + 1)
    content = body if size == "stated" else iter([body[:100], body[100:]])
    answer = httpx.post(f"{url}/login", content=content)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
