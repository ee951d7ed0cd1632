"""A token that is limited to one project, against every route, with what other projects have.

Another project's runs, sweeps, rollouts, capsules, views and texts do not exist for it: its answers
are those for an id that nobody has. Each route must have a declared scope.
"""

from __future__ import annotations

import hashlib
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from lehr.cluster.membership import Cluster
from lehr.presenters.cluster import ClusterPresenter
from lehr.specs import load_spec
from lehr.store.records import saved_views
from lehr_api import auth, scopes
from lehr_api.scopes import Refused, Scope
from lehr_testing.api import RUN_SPEC, ingest, line
from lehr_testing.asgi import Request, ask
from lehr_testing.buckets import make_checkpoint
from lehr_testing.routes import concrete, walk

from .projects import API, SECRET, Scene, bearer

UNKNOWN = "zzzzzzzz"
_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")


def people_routes(app):
    """Every route that a person's token opens, as method and path, but the endless stream."""
    for path, method in sorted(set(walk(app.routes))):
        open_ = path.startswith("/static") or auth.is_open(path) or auth.attempt_of(path)
        if method not in {"HEAD", "OPTIONS"} and not open_ and path != f"{API}/stream":
            yield method, path


def test_every_route_has_a_declared_scope(scene):
    routes = {path for path, _ in walk(scene.client.app.routes)}
    known = {path for path in scopes.SCOPES if not path.startswith("/static/")}
    named = {path for path in routes if not path.startswith("/static")}
    assert named - known == set(), "declare the scope of these routes in lehr_api/scopes.py"
    assert known - named == set(), "there are no such routes"
    for path in routes - {"/static"}:
        found = scopes.of(concrete(path))
        assert found is not None, path
        assert path not in scopes.SCOPES or found is scopes.SCOPES[path], path
        if auth.attempt_of(path):
            assert found is Scope.WORKER


def test_route_without_a_declared_scope_does_not_exist_for_a_limited_token(scene, monkeypatch):
    path = f"{API}/presets"
    assert scene.get("/presets").status_code == 200
    declared = [(p, s) for p, s in scopes._PATTERNS if not p.fullmatch(path)]
    monkeypatch.setattr(scopes, "_PATTERNS", declared)
    assert scene.get("/presets").status_code == 404
    assert scene.client.get(path).status_code == 200


def bodies(scene: Scene, path: str) -> dict[str, Any]:
    """Return a body that the route accepts, so that it looks for what the path names."""
    spec = {**RUN_SPEC, "project": "mine"}
    known: dict[str, dict[str, Any]] = {
        "tags": {"tags": [], "add": []},
        "note": {"note": "x"},
        "priority": {"priority": 1},
        "seeds": {"n": 1},
        "fork": {"changes": {}},
        "wandb": {"mode": "offline"},
        "transfer": {"spec": spec},
        "extend": {"trials": 1},
    }
    return known.get(path.rsplit("/", 1)[-1], {})


def filled(path: str, ids: SimpleNamespace | str) -> str:
    """Put ids of a project into a path; a text stands for all of them."""
    kind = (
        path.split("/")[3].rstrip("s") if path.startswith(API) else path.split("/")[1].rstrip("s")
    )
    own = ids if isinstance(ids, str) else getattr(ids, kind, ids.run)
    digest = hashlib.sha256(b"").hexdigest() if isinstance(ids, str) else ids.digest
    sound = {"name": "rank-0.log", "step": "5", "node": "n1", "digest": digest}
    return _PARAMETER.sub(lambda found: sound.get(found[1], own), path)


QUERIES = {
    "/compare": "run={0}&run={0}",
    "/values": "run={0}&names=true",
    "/v1/series": "run={0}&name=train/loss",
    "/v1/metrics": "run={0}",
    "/series": "name=train/loss",
    "/search": "text=own",
    "/diff": "other={0}",
    "/runs": "sweep={0}",
}


MANY = {"compare", "values", "runs", "metrics", "series"}
"""Last words of routes that take runs in their query."""


def request(scene: Scene, method: str, path: str, ids: SimpleNamespace | str) -> Request:
    address = filled(path, ids)
    end = next((q for end, q in QUERIES.items() if path.endswith(end)), "")
    sweep = path.endswith("/runs")
    which = ids if isinstance(ids, str) else ids.sweep if sweep else ids.run
    query = end.format(which) if method == "GET" else ""
    body = json.dumps(bodies(scene, path)).encode()
    if path.endswith("/tags"):
        body = b'{"tags": []}' if method == "PUT" else b'{"add": ["x"]}'
    return Request(method, address, scene.token, [body], query=query)


def test_what_another_project_has_is_answered_as_if_nobody_had_it(scene):
    routes = [
        (method, path)
        for method, path in people_routes(scene.client.app)
        if ("{" in path or (method == "GET" and path.split("/")[-1] in MANY))
        and scopes.SCOPES.get(path) is Scope.OWN
        and path not in {f"{API}/views/{{name}}", f"{API}/code/{{digest}}"}
    ]
    assert len(routes) >= 60
    before = scene.counts()
    pairs = [
        (request(scene, method, path, scene.theirs), request(scene, method, path, UNKNOWN))
        for method, path in routes
    ]
    answers = ask(scene.client, scene.api.app, [one for pair in pairs for one in pair])
    for number, (method, path) in enumerate(routes):
        theirs, unknown = answers[2 * number], answers[2 * number + 1]
        what = f"{method} {path}: {theirs.status} {theirs.body[:300]!r}"
        assert theirs.status == 404, what
        assert unknown.status == 404, f"{method} {path}: {unknown.body[:300]!r}"
        for own in (scene.theirs.run, scene.theirs.sweep, scene.theirs.rollout):
            theirs.body = theirs.body.replace(own.encode(), UNKNOWN.encode())
        assert without_hints(theirs.body) == without_hints(unknown.body), what
        assert SECRET.encode() not in theirs.body, what
    assert scene.counts() == before
    assert scene.api.store.runs.get(scene.theirs.run).note == SECRET
    # The same requests find what is of the token's own project: they do not fail by themselves.
    reads = [
        (m, p) for m, p in routes if m == "GET" and not p.endswith(("deletion", "files/{name}"))
    ]
    own = ask(scene.client, scene.api.app, [request(scene, m, p, scene.mine) for m, p in reads])
    found = [answer.status for answer in own]
    assert found.count(200) > len(found) - 5, dict(zip(reads, found, strict=True))


def without_hints(body: bytes) -> dict[str, Any]:
    """Return a problem without its hint: the nearest name depends on the id."""
    problem = json.loads(body)
    problem.pop("hint", None)
    return problem


def test_names_and_prefixes_of_another_project_do_not_help(scene):
    for ref in (f"{SECRET}-run", scene.theirs.run[:6], scene.theirs.run.upper()):
        answer = scene.get(f"/runs/{ref}")
        assert answer.status_code == 404
        assert SECRET not in answer.text.replace(ref, "")
    # A name that both projects have means the token's own.
    spec = {**RUN_SPEC, "project": "theirs", "name": "own-run"}
    assert scene.client.post(f"{API}/runs", json={"spec": spec}).status_code == 201
    assert scene.get("/runs/own-run").json()["id"] == scene.mine.run


def test_no_readable_route_shows_anything_of_another_project(scene):
    read = 0
    for method, path in people_routes(scene.client.app):
        if method != "GET":
            continue
        asked = request(scene, method, path, scene.mine)
        asked.query = "" if path == f"{API}/runs" else asked.query
        [answer] = ask(scene.client, scene.api.app, [asked])
        what = f"{path}: {answer.status} {answer.body[:500]!r}"
        assert SECRET.encode() not in answer.body, what
        assert scene.theirs.run.encode() not in answer.body, what
        declared = scopes.SCOPES[path]
        if isinstance(declared, Refused):
            assert answer.status == 403, what
        read += answer.status == 200
    assert read > 40


def test_lists_leave_other_projects_out_also_in_their_totals(scene):
    for kind, own in (("runs", 4), ("sweeps", 1), ("rollouts", 1)):
        for query in ("", f"?search={SECRET}", "?project=theirs", f"?tag={SECRET}-tag"):
            page = scene.get(f"/{kind}{query}").json()
            assert page["total"] == (own if not query else 0), (kind, query)
            assert {one["project"] for one in page["items"]} <= {"mine"}
    assert [q["project"] for q in scene.get("/quotas").json()["quotas"]] == ["mine"]
    assert [s["name"] for s in scene.get("/secrets").json()["secrets"]] == ["mine.hf"]


def test_key_of_another_token_does_not_show_what_it_made(scene):
    spec = {**RUN_SPEC, "project": "mine"}
    made = scene.client.post(
        f"{API}/runs", json={"spec": spec}, headers={"Idempotency-Key": "k1"}
    ).json()
    answer = scene.send("POST", "/runs", {"spec": spec}, **{"Idempotency-Key": "k1"})
    assert answer.status_code == 409
    assert made["id"] not in answer.text


def test_saved_views_are_kept_apart(scene):
    assert scene.get("/views").json() == {"views": []}
    assert scene.send("DELETE", f"/views/{SECRET}", None).status_code == 404
    assert scene.send("PUT", f"/views/{SECRET}", {"query": "sort=loss"}).status_code == 200
    [view] = scene.get("/views").json()["views"]
    assert view["query"] == "sort=loss"
    [view] = scene.client.get(f"{API}/views").json()["views"]
    assert view["query"] == f"filter={SECRET}"


def test_cluster_and_queue_show_load_without_names(scene):
    store = scene.api.store
    cluster = Cluster({})
    cluster.set_state("up", None)
    node = {"name": "n1", "ray_id": "r1", "address": "a", "gpus": 2, "alive": True}
    cluster.on_news({"news": "members", "nodes": [node]})
    gpus = [{"index": i, "name": "A100", "memory_bytes": None} for i in range(2)]
    hello = {"attempts": {}, "gpus": gpus}
    cluster.on_news({"news": "node", "name": "n1", "hello": hello})
    # The run of theirs holds GPU 0; that of mine has ended.
    store.attempts.close(scene.mine.attempt)
    presenter = ClusterPresenter(store, cluster, lambda: (), embedded=True)
    scene.api.services.cluster_views = presenter
    view = scene.get("/cluster").json()
    assert (view["gpus_total"], view["gpus_busy"]) == (2, 1)
    gpu = view["nodes"][0]["gpus"][0]
    assert (gpu["run_id"], gpu["run_name"], gpu["attempt"]) == (
        None,
        "a run of another project",
        None,
    )
    assert gpu["since"] is not None
    assert f"{SECRET}-run" in scene.client.get(f"{API}/cluster").text
    queue = scene.get("/queue").json()
    assert {entry["project"] for entry in queue} == {"mine"}
    assert {entry["project"] for entry in scene.client.get(f"{API}/queue").json()} == {
        "mine",
        "theirs",
    }
    assert any("another project" in entry["expected_because"] for entry in queue), queue
    store.nodes.note(
        "n1",
        "excluded",
        f"it failed 2 attempts in a row: {scene.theirs.attempt} (gpu_busy)",
        actor="dispatcher",
    )
    view = scene.get("/cluster").json()
    assert view["nodes"][0]["excluded"] == "it failed 2 attempts in a row"
    assert SECRET not in json.dumps([queue, view])
    assert scene.theirs.run not in json.dumps([queue, view])


def test_stream_has_events_of_the_tokens_projects_only(scene):
    from lehr import projects

    hub = scene.api.services.hub
    limit = frozenset({"mine"})
    both = (scene.mine, scene.theirs)
    changes = {("cluster", "", "", None)} | {
        (kind, getattr(one, ident), "", None)
        for one in both
        for kind, ident in (("run", "run"), ("sweep", "sweep"), ("rollout", "rollout"))
    }
    sizes = {(one.run, "rank-0.log", 1): 5 for one in both}
    events = hub._build(changes, sizes, limit)
    assert {event.id for event in events if event.id} == {
        scene.mine.run,
        scene.mine.sweep,
        scene.mine.rollout,
    }
    assert {event.kind for event in events} == {"run", "sweep", "rollout", "log", "cluster"}
    assert SECRET.encode() not in b"".join(event.data for event in events)
    only = hub._build({("metrics", one.run, "", None) for one in both}, {}, limit)
    assert [event.id for event in only] == [scene.mine.run]
    assert {event.id for event in hub._build(changes, sizes, None)} >= {scene.theirs.run}
    assert projects.current() is None
    assert scene.get(f"/stream?run={scene.theirs.run}").status_code == 404


def test_deletion_does_not_name_forks_of_another_project(scene):
    store = scene.api.store
    spec = load_spec({**RUN_SPEC, "project": "theirs", "name": f"{SECRET}-fork"})
    store.runs.create(spec, forked_from=scene.mine.run, resume_from="/x")
    shown = scene.get(f"/runs/{scene.mine.run}/deletion").json()
    assert any("a run of another project" in note for note in shown["notes"]), shown
    scene.client.post(f"{API}/runs/{scene.mine.run}/cancel")
    assert SECRET not in scene.get(f"/sweeps/{scene.mine.sweep}/deletion").text
    assert SECRET not in json.dumps(shown)


def test_deletion_of_a_checkpoint_does_not_name_a_fork_of_another_project(scene):
    folder = f"attempt-1/checkpoints/step-{5:08d}"
    digest = make_checkpoint(scene.api.settings.home / "runs" / scene.mine.run / folder, step=5)
    saved = {"path": folder, "size_bytes": 1010, "digest": digest, "reason": "interval"}
    ingest(scene.api.store, scene.mine.attempt, line("checkpoint", step=5, **saved))
    changes = {"project": "theirs", "name": f"{SECRET}-fork"}
    forked = scene.client.post(
        f"{API}/runs/{scene.mine.run}/fork", json={"step": 5, "changes": changes}
    )
    assert forked.status_code == 201, forked.text
    checkpoint = f"/runs/{scene.mine.run}/checkpoints/5"
    shown = scene.get(f"{checkpoint}/deletion")
    refused = scene.send("DELETE", checkpoint, None)
    assert refused.status_code == 409
    for answer in (shown, refused):
        assert "a run of another project waits to start from it" in answer.text
        assert SECRET not in answer.text
        assert forked.json()["id"] not in answer.text
    assert f"{SECRET}-fork" in scene.client.get(f"{API}{checkpoint}/deletion").text


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"role": "admin", "projects": ["mine"]}, "an admin manages the whole server"),
        ({"role": "viewer", "projects": []}, "projects has 0 names; it must have 1 to 50"),
        ({"role": "viewer", "projects": ["a b"]}, "projects: 'a b' is not the name of a project."),
        ({"role": "viewer", "projects": ["../x"]}, "projects: '../x' is not the name"),
    ],
)
def test_wrong_projects_of_a_token_are_one_clear_error(scene, wrong, message):
    answer = scene.client.post(f"{API}/tokens", json={"name": "x", **wrong})
    assert answer.status_code == 422
    assert message in answer.json()["detail"]
    assert len(scene.client.get(f"{API}/tokens").json()["tokens"]) == 1


def test_rotated_token_and_its_login_keep_the_limit(scene):
    rotated = scene.client.post(f"{API}/tokens/eve/rotate").json()
    assert rotated["projects"] == ["mine"]
    link = scene.client.post(f"{API}/login-links", headers=bearer(rotated["token"])).json()["url"]
    browser = scene.client
    browser.headers.pop("authorization")
    assert browser.post("/login", data={"code": link.partition("code=")[2]}).status_code == 303
    assert browser.get(f"{API}/runs/{scene.mine.run}").status_code == 200
    assert browser.get(f"{API}/runs/{scene.theirs.run}").status_code == 404
    assert browser.get("/").status_code == 200


def test_saved_views_of_a_token_do_not_use_up_those_of_others(scene, monkeypatch):
    monkeypatch.setattr(saved_views, "MOST", 2)
    monkeypatch.setattr(saved_views, "MOST_IN_ALL", 4)
    query = {"query": "sort=loss"}

    def put(name: str, token: str | None) -> str:
        headers = bearer(token) if token else {}
        answer = scene.client.put(f"{API}/views/{name}", json=query, headers=headers)
        return "saved" if answer.status_code == 200 else answer.json()["detail"]

    assert [put(name, scene.token) for name in "abc"] == [
        "saved",
        "saved",
        "there are 2 saved views, the maximum.",
    ]
    assert put("a", scene.token) == "saved"  # It replaces one.
    assert [put(name, None) for name in "ab"] == ["saved", "there are 2 saved views, the maximum."]
    body = {"name": "kim", "role": "researcher", "projects": ["mine", "theirs"]}
    both = scene.client.post(f"{API}/tokens", json=body).json()["token"]
    assert put("a", both) == "the server has 4 saved views of all projects, the maximum."
