"""Named tokens: roles, ends, logins, and the record of who did what."""

from __future__ import annotations

import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from lehr.base.access import Role
from lehr.errors import StoreUnavailable
from lehr.store.records import access_tokens
from lehr_api import auth
from lehr_api.logins import EndedLogins, Login, Person
from lehr_testing.api import BASE, RUN_SPEC, TOKEN, served
from lehr_testing.routes import concrete, policies

ADMINS = {
    ("GET", "/api/v1/tokens"),
    ("POST", "/api/v1/tokens"),
    ("POST", "/api/v1/tokens/{name}/rotate"),
    ("DELETE", "/api/v1/tokens/{name}"),
    ("GET", "/api/v1/audit"),
    ("PUT", "/api/v1/secrets/{name}"),
    ("DELETE", "/api/v1/secrets/{name}"),
    ("PUT", "/api/v1/quotas/{project}"),
    ("DELETE", "/api/v1/quotas/{project}"),
    ("POST", "/api/v1/cluster/nodes/{node}/until"),
    ("POST", "/api/v1/cluster/nodes/{node}/exclude"),
    ("POST", "/api/v1/cluster/nodes/{node}/readmit"),
    ("POST", "/api/v1/cluster/join"),
    ("POST", "/api/v1/cluster/leave"),
}
VIEWERS = {
    ("POST", "/api/v1/sweeps/law"),
    ("POST", "/api/v1/sweeps/{ref}/transfer"),
    ("POST", "/api/v1/sweeps/law"),
    ("POST", "/api/v1/login-links"),
    ("PUT", "/api/v1/push"),
    ("POST", "/logout"),
}
"""Routes that a viewer may post to."""
CODE = {
    ("GET", "/api/v1/code/{ref}"),
    ("GET", "/api/v1/code/{ref}/diff"),
    ("GET", "/api/v1/code/{ref}/archive"),
    ("GET", "/api/v1/bundles/{ref}"),
}
"""Routes that a viewer may not read, and a researcher may."""


def create(client, name, role, **more):
    answer = client.post("/api/v1/tokens", json={"name": name, "role": role, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["token"]


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def of_people(client):
    """Every route that a person's token opens, with the role that its policy names."""
    for route, path, method in policies(client.app.routes):
        outside = not path.startswith("/api/") or path.endswith("/openapi.json")
        policy = auth.Policy(Role.VIEWER, Role.VIEWER) if outside else auth.policy_of(route)
        assert policy is not None, path
        if policy.reading is None:
            assert auth.is_open(path) or auth.attempt_of(path), path
        elif not auth.is_open(path) and method not in {"HEAD", "OPTIONS"}:
            yield method, path, policy.needed(method)


def test_each_route_needs_the_role_that_this_test_names(client):
    found = {role: set() for role in Role}
    for method, path, role in of_people(client):
        found[role].add((method, path))
    assert found[Role.ADMIN] == ADMINS
    assert {one for one in found[Role.VIEWER] if one[0] != "GET"} == VIEWERS
    assert {one for one in found[Role.RESEARCHER] if one[0] == "GET"} == CODE
    assert ("POST", "/api/v1/runs") in found[Role.RESEARCHER]
    assert ("DELETE", "/api/v1/runs/{ref}") in found[Role.RESEARCHER]


@pytest.mark.parametrize("role", Role)
def test_route_is_refused_exactly_to_lower_roles(client, role):
    token = create(client, "somebody", role)
    for method, path, needed in of_people(client):
        if path == "/api/v1/stream":
            continue
        answer = client.request(method, concrete(path), headers=bearer(token))
        refused = answer.status_code == 403
        expected = not role.includes(needed)
        assert refused == expected, (method, path, answer.text)
    if role is Role.VIEWER:
        problem = client.post("/api/v1/runs", json={}, headers=bearer(token)).json()
        assert problem["code"] == "forbidden"
        assert problem["detail"] == (
            "this needs the role researcher; the token 'somebody' has the role viewer."
        )


def test_line_feed_at_the_end_does_not_make_a_researcher_an_admin(client):
    """Starlette's routes also match a path with a line feed at its end."""
    eve = create(client, "eve", "researcher")
    body = {"name": "pwn", "role": "admin"}
    answer = client.post("/api/v1/tokens%0A", json=body, headers=bearer(eve))
    assert answer.status_code in {403, 404}
    assert "pwn" not in client.get("/api/v1/tokens").text


def test_viewer_reads_no_code_by_digest_prefix_or_run(api):
    lehr, client = api
    researcher, viewer = create(client, "anna", "researcher"), create(client, "ben", "viewer")
    sent = client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=bearer(researcher)).json()
    digest = sent["spec"]["code"]["digest"]
    for ref in (digest, digest[:12], sent["id"]):
        for way in ("", "/archive", f"/diff?other={digest}"):
            path = f"/api/v1/code/{ref}{way}"
            assert client.get(path, headers=bearer(researcher)).status_code == 200, path
            refused = client.get(path, headers=bearer(viewer))
            assert refused.status_code == 403, path
            assert "this needs the role researcher" in refused.json()["detail"]
    # The digest itself is of the record, as the rest of the spec is.
    shown = client.get(f"/api/v1/runs/{sent['id']}", headers=bearer(viewer)).json()
    assert shown["spec"]["code"]["digest"] == digest
    assert lehr is not None


def test_value_of_a_token_is_in_one_answer_and_in_no_file(client, tmp_path):
    token = create(client, "anna", "viewer")
    [listed] = client.get("/api/v1/tokens").json()["tokens"]
    assert (listed["name"], listed["role"], listed["state"]) == ("anna", "viewer", "valid")
    assert token not in str(listed)
    assert client.get("/api/v1/runs", headers=bearer(token)).status_code == 200
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name.startswith("lehr.db") for path in written)
    assert not [path for path in written if token.encode() in path.read_bytes()]


def test_rotated_value_ends_and_the_new_one_works_at_once(client):
    old = create(client, "anna", "viewer")
    new = client.post("/api/v1/tokens/anna/rotate").json()["token"]
    assert client.get("/api/v1/runs", headers=bearer(old)).status_code == 401
    assert client.get("/api/v1/runs", headers=bearer(new)).status_code == 200


def test_revoked_token_gets_the_reason_and_its_name_can_be_used_again(client):
    old = create(client, "anna", "viewer")
    assert client.delete("/api/v1/tokens/anna").json()["state"] == "revoked"
    assert client.delete("/api/v1/tokens/anna").status_code == 200
    answer = client.get("/api/v1/runs", headers=bearer(old))
    assert (answer.status_code, answer.json()["detail"]) == (401, "the token 'anna' is revoked.")
    rotated = client.post("/api/v1/tokens/anna/rotate")
    assert (rotated.status_code, rotated.json()["detail"]) == (422, "the token 'anna' is revoked.")
    new = create(client, "anna", "researcher")
    assert client.get("/api/v1/runs", headers=bearer(new)).status_code == 200


def test_token_expires_after_its_days(store, client, monkeypatch):
    token = create(client, "anna", "viewer", expires_in_days=2)
    now = store.clock()
    tokens = store.access_tokens
    monkeypatch.setattr(tokens, "_clock", lambda: now + 1.99 * 86_400)
    assert client.get("/api/v1/runs", headers=bearer(token)).status_code == 200
    monkeypatch.setattr(tokens, "_clock", lambda: now + 2.01 * 86_400)
    answer = client.get("/api/v1/runs", headers=bearer(token))
    assert (answer.status_code, answer.json()["detail"]) == (401, "the token 'anna' is expired.")
    assert client.get("/api/v1/tokens").json()["tokens"][0]["state"] == "expired"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "Anna K", "role": "viewer"}, "'Anna K' is not a name for a token."),
        ({"name": "", "role": "viewer"}, "'' is not a name for a token."),
        ({"name": "user", "role": "viewer"}, "'user' is the server's own."),
        ({"name": "anna", "role": "viewr"}, "'viewr' is not a role. The roles are viewer"),
        (
            {"name": "anna", "role": "viewer", "expires_in_days": 0},
            "expires_in_days is 0; it must be above 0 and at most 3650.",
        ),
        ({"name": "anna", "role": "viewer", "expires_in_days": 1e300}, "above 0 and at most"),
    ],
)
def test_wrong_request_is_one_clear_error_and_creates_nothing(client, wrong, message):
    answer = client.post("/api/v1/tokens", json=wrong)
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert client.get("/api/v1/tokens").json() == {"tokens": []}
    if wrong["role"] == "viewr":
        assert answer.json()["hint"] == "Did you mean viewer?"


def test_taken_and_unknown_names_are_errors(client, monkeypatch):
    create(client, "anna", "viewer")
    again = client.post("/api/v1/tokens", json={"name": "anna", "role": "admin"})
    assert (again.status_code, again.json()["detail"]) == (422, "there is a token 'anna' already.")
    missing = client.delete("/api/v1/tokens/ana")
    assert (missing.status_code, missing.json()["hint"]) == (404, "Did you mean anna?")
    monkeypatch.setattr(access_tokens, "MOST", 1)
    full = client.post("/api/v1/tokens", json={"name": "bert", "role": "admin"})
    assert "there are 1 tokens" in full.json()["detail"]


def test_record_names_the_token_that_submitted_and_cancelled(store, client):
    token = create(client, "anna", "researcher")
    run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=bearer(token)).json()
    assert run["submitted_by"] == "anna"
    client.post(f"/api/v1/runs/{run['id']}/cancel")
    with store.db.read() as session:
        actors = session.connection().exec_driver_sql(
            "SELECT kind, actor FROM requests WHERE run_id=? ORDER BY id", (run["id"],)
        )
        assert ("cancel", "user") in [tuple(row) for row in actors]


def test_audit_has_changes_and_refusals_with_their_token_but_no_reading(client):
    token = create(client, "anna", "viewer")
    client.get("/api/v1/runs", headers=bearer(token))
    client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=bearer(token))
    client.post("/api/v1/runs", json={"spec": RUN_SPEC})
    client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=bearer("wrong"))
    items = client.get("/api/v1/audit").json()["items"]
    assert [(one["name"], one["method"], one["path"], one["status"]) for one in items] == [
        ("user", "POST", "/api/v1/runs", 201),
        ("anna", "POST", "/api/v1/runs", 403),
        ("user", "POST", "/api/v1/tokens", 201),
    ]
    assert items[1]["role"] == "viewer"
    assert items[0]["address"] == "invalid", "a name is not stored: a proxy passes on any text"
    only = client.get("/api/v1/audit", params={"name": "anna"}).json()
    assert [one["status"] for one in only["items"]] == [403]
    assert client.get("/api/v1/audit", params={"since": items[0]["at"] + 1}).json()["total"] == 0


def test_audit_is_paged_and_bounded(store, client, monkeypatch):
    monkeypatch.setattr(access_tokens, "MOST_ENTRIES", 20)
    monkeypatch.setattr(access_tokens, "_TRIM_EVERY", 10)
    for number in range(45):
        store.audit.add("a", "admin", method="POST", path=f"/{number}", status=200, address="")
    found, cursor = [], None
    while True:
        asked = {"limit": 7} if cursor is None else {"limit": 7, "cursor": cursor}
        page = client.get("/api/v1/audit", params=asked).json()
        found += [int(one["path"][1:]) for one in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == list(range(44, 19, -1))
    assert page["total"] == 25


def test_browser_is_logged_in_as_the_token_and_out_when_that_ends(client):
    token = create(client, "anna", "viewer")
    browser = httpx_browser(client)
    assert browser.post("/login", data={"token": token}).status_code == 303
    assert browser.get("/api/v1/runs").status_code == 200
    assert browser.post("/api/v1/runs", json={"spec": RUN_SPEC}).status_code == 403
    client.post("/api/v1/tokens/anna/rotate")
    answer = browser.get("/api/v1/runs")
    assert (answer.status_code, answer.json()["detail"]) == (401, "the login is no longer valid.")


def test_cookie_of_one_token_does_not_open_as_another(store, client, tmp_path):
    keys = auth.Keys(TOKEN)
    create(client, "anna", "viewer")
    create(client, "boss", "admin")
    tokens, ended, login = store.access_tokens, EndedLogins(tmp_path), Login.new(time.time())
    viewer = Person("anna", Role.VIEWER, tokens.of_name("anna").sha256)
    cookie = keys.cookie_of(viewer, login)
    assert auth.person_of_cookie(cookie, keys, tokens, ended) == viewer
    forged = cookie.replace("anna", "boss")
    assert auth.person_of_cookie(forged, keys, tokens, ended) is None


def httpx_browser(client):
    """A client without the token, which keeps cookies."""
    from starlette.testclient import TestClient

    return TestClient(client.app, base_url=BASE, follow_redirects=False)


def code_of(url):
    [code] = parse_qs(urlsplit(url).query)["code"]
    return code


def test_login_link_logs_in_once_as_its_maker_and_opening_it_does_not_use_it_up(api):
    _, client = api
    token = create(client, "anna", "viewer")
    url = client.post("/api/v1/login-links", headers=bearer(token)).json()["url"]
    assert token not in url
    browser = httpx_browser(client)
    for _ in range(2):
        page = browser.get(f"/login?code={code_of(url)}")
        assert 'type="password"' not in page.text
        assert "Press the button to log in. The link then no longer works." in page.text
    answer = browser.post("/login", data={"code": code_of(url), "next": "/cluster"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/cluster")
    assert browser.get("/api/v1/runs").status_code == 200
    assert browser.post("/api/v1/runs", json={"spec": RUN_SPEC}).status_code == 403
    again = httpx_browser(client).post("/login", data={"code": code_of(url)})
    assert again.status_code == 401
    assert "This login link was used or has expired." in again.text


def test_open_stream_ends_when_its_token_is_revoked(tmp_path):
    with (
        served(tmp_path, heartbeat_s=0.05) as (api, address),
        httpx.Client(base_url=address, timeout=20) as http,
    ):
        token = create_over(http, "anna")
        with http.stream("GET", "/api/v1/stream", headers=bearer(token)) as answer:
            pieces = answer.iter_raw()
            assert next(pieces)
            api.store.access_tokens.revoke("anna")
            list(pieces)  # Ends, or the timeout of this test does.
        refused = http.get("/api/v1/stream", headers=bearer(token))
        assert refused.status_code == 401


def create_over(http, name):
    answer = http.post(
        "/api/v1/tokens", json={"name": name, "role": "viewer"}, headers=bearer(TOKEN)
    )
    return answer.json()["token"]


def test_request_that_the_store_could_not_write_waits_for_no_second_write(
    store, client, monkeypatch
):
    audited = []
    monkeypatch.setattr(store.audit, "add", lambda *_, **entry: audited.append(entry["status"]))

    def locked(*_, **__):
        raise StoreUnavailable("lehr.db could not be written: database is locked.")

    assert client.put("/api/v1/quotas/mine", json={"gpus": 2}).status_code == 200
    monkeypatch.setattr(store.quotas, "put", locked)
    answer = client.put("/api/v1/quotas/mine", json={"gpus": 3})
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert audited == [200]
