"""A path that is almost a route's: it needs the route's role, or there is nothing at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import compile_path

from lehr import access
from lehr.access import Role
from lehr.errors import UserError
from lehr.specs import load_spec
from lehr_api import auth
from lehr_testing.api import RUN_SPEC, TOKEN, api_client, attempt_token, begin
from lehr_testing.asgi import Request, ask
from lehr_testing.routes import concrete, walk

CONTROL = [chr(code) for code in (*range(0x20), 0x7F)]
ALMOST = (
    *("{}" + control for control in CONTROL),
    *("{}/", "/{}", "{}//", "{}/.", "{}/..", "{};x", "{}?x", "{}#", "{}%0A", "{} ", "{}\u2028"),
    *("{}\x85", "{}\u3000", "{}.json"),
)
"""Ways to write a path that some reader of paths takes for the path itself."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any]]:
    with api_client(tmp_path_factory.mktemp("doors")) as (api, client):
        yield api, client


def routes(client: Any) -> list[tuple[str, str]]:
    """Every method and path of the application that a person's or a worker's token opens."""
    return [
        (method, path)
        for path, method in walk(client.app.routes)
        if method != "OPTIONS" and not path.startswith("/static") and not auth.is_open(path)
    ]


def variants(path: str) -> list[str]:
    swapped = path.replace("/api/v1", "/api/V1").replace("/api", "//api")
    inner = [path.replace("/v1/", f"/v1/{control}") for control in "\n\r\0"]
    return [*(way.format(path) for way in ALMOST), path.upper(), swapped, *inner]


def test_no_almost_equal_path_reaches_a_route_with_a_lower_role(server: tuple[Any, Any]) -> None:
    """Starlette itself is the witness: its own regular expressions decide which route answers."""
    _, client = server
    exact = {path: compile_path(path)[0] for _, path in routes(client)}
    reached = 0
    for method, path in routes(client):
        role = access.needed(method, concrete(path))
        for variant in variants(concrete(path)):
            if not exact[path].match(variant):
                continue
            reached += 1
            with pytest.raises(UserError) if has_control(variant) else nullcontext():
                auth.check_path(variant)
                assert access.needed(method, variant) == role, (method, variant)
                assert (auth.attempt_of(variant) is None) == (auth.attempt_of(path) is None)
    assert reached > 100


def has_control(path: str) -> bool:
    return any(control in path for control in CONTROL)


@pytest.mark.parametrize("role", [*Role, None])
def test_no_route_answers_with_a_control_character_in_its_path(
    server: tuple[Any, Any], role: Role | None
) -> None:
    api, client = server
    token = "none"
    if role is not None:
        made = client.post("/api/v1/tokens", json={"name": f"a-{role}", "role": role})
        token = made.json()["token"]
    asked = [
        Request(method, f"{concrete(path)}{end}", token, [b'{"name": "pwn", "role": "admin"}'])
        for method, path in routes(client)
        for end in ("\n", "\r\n", "\0")
    ]
    assert len(asked) > 300
    for request, answer in zip(asked, ask(client, api.app, asked), strict=True):
        what = f"{request.method} {request.path!r}: {answer.status} {answer.body[:200]!r}"
        assert answer.status == 422, what
        assert answer.headers["content-type"] == "application/problem+json", what


def test_no_route_of_an_attempt_answers_with_a_line_feed(tmp_path: Path) -> None:
    with api_client(tmp_path) as (api, client):
        run = api.store.runs.create(load_spec(RUN_SPEC))
        begin(api.store, run.id)
        paths = [path for _, path in routes(client) if auth.attempt_of(path)]
        asked = [
            Request(method, f"{path.replace('{attempt_id}', f'{run.id}-1')}\n", token)
            for path in paths
            for method in ("GET", "POST", "PUT")
            for token in (attempt_token(run.id), TOKEN)
        ]
        assert asked
        assert {answer.status for answer in ask(client, api.app, asked)} == {422}


def test_line_feed_at_the_end_does_not_make_a_researcher_an_admin(
    server: tuple[Any, Any],
) -> None:
    _, client = server
    made = client.post("/api/v1/tokens", json={"name": "eve", "role": "researcher"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    body = {"name": "pwn", "role": "admin"}
    answer = client.post("/api/v1/tokens%0A", json=body, headers=headers)
    assert answer.status_code == 422
    assert "has control characters" in answer.json()["detail"]
    assert "pwn" not in {one["name"] for one in client.get("/api/v1/tokens").json()["tokens"]}
