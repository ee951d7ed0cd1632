"""A token that is limited to one project, against every route, with what other projects have.

Another project's runs, sweeps, rollouts, capsules, views and texts do not exist for it: its answers
are those for an id that nobody has. Each route must have a declared scope.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from lehr.capsules import archive
from lehr.capsules.archive import SourceFile
from lehr.cluster.membership import Cluster
from lehr.presenters.cluster import ClusterPresenter
from lehr.specs import load_spec
from lehr.store.records import saved_views
from lehr_api import auth, scopes
from lehr_api.scopes import Refused, Scope
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    api_client,
    begin,
    evaluation,
    ingest,
    line,
    metrics,
)
from lehr_testing.api import started as started_record
from lehr_testing.asgi import Request, ask
from lehr_testing.buckets import make_checkpoint
from lehr_testing.rollouts import TRAIN
from lehr_testing.routes import concrete, walk

SECRET = "canary"
"""In each name and text of the other project."""
UNKNOWN = "zzzzzzzz"
API = "/api/v1"
_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Scene:
    api: Any
    client: Any
    token: str
    """For the project mine."""
    mine: SimpleNamespace
    theirs: SimpleNamespace

    def get(self, path: str, token: str | None = None):
        return self.client.get(f"{API}{path}", headers=bearer(token or self.token))

    def send(self, method: str, path: str, body: Any, **headers: str):
        given = {**bearer(self.token), **headers}
        return self.client.request(method, f"{API}{path}", json=body, headers=given)

    def counts(self) -> list[int]:
        store = self.api.store
        return [t.page(archived=None).total for t in (store.runs, store.sweeps, store.rollouts)]


def project(api, client, name: str, word: str, tmp_path) -> SimpleNamespace:
    """Submit a run, a sweep and a rollout as the server's owner, each text with the word."""

    def post(kind: str, spec: dict[str, Any]) -> str:
        spec = {**spec, "kind": kind, "project": name, "name": f"{word}-{kind}", "notes": word}
        answer = client.post(f"{API}/{kind}s", json={"spec": {**spec, "tags": [f"{word}-tag"]}})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    digest, data = capsule(tmp_path, f"print('{word}')\n", f"{word}.py")
    assert client.put(f"{API}/code/{digest}", content=data).status_code == 200
    run = post("run", {**RUN_SPEC, "code": {"digest": digest}})
    attempt = begin(api.store, run)
    body = started_record() + metrics(1, 5) + evaluation(5, 2.0)
    ingest(api.store, attempt, body)
    ingest(api.store, attempt, f"{word}\n".encode(), name="rank-0.log")
    sweep = post("sweep", SWEEP_SPEC)
    rollout = post("rollout", {"run": {"train": TRAIN}})
    return SimpleNamespace(run=run, sweep=sweep, rollout=rollout, attempt=attempt, digest=digest)


def capsule(folder, text: str, name: str = "train.py") -> tuple[str, bytes]:
    (folder / name).write_text(text)
    output = io.BytesIO()
    digest, _ = archive.write([SourceFile(f"project/{name}", str(folder / name), False)], output)
    return digest, output.getvalue()


@pytest.fixture
def scene(tmp_path):
    with api_client(tmp_path / "home") as (api, client):
        mine = project(api, client, "mine", "own", tmp_path)
        theirs = project(api, client, "theirs", SECRET, tmp_path)
        query = {"query": f"filter={SECRET}"}
        assert client.put(f"{API}/views/{SECRET}", json=query).status_code == 200
        assert client.put(f"{API}/quotas/theirs", json={"gpus": 1}).status_code == 200
        assert client.put(f"{API}/quotas/mine", json={"gpus": 4}).status_code == 200
        for secret in (f"{SECRET}-shared", "theirs.canary", "mine.hf"):
            assert client.put(f"{API}/secrets/{secret}", json={"value": "v"}).status_code == 200
        body = {"name": "eve", "role": "researcher", "projects": ["mine"]}
        made = client.post(f"{API}/tokens", json=body)
        assert made.status_code == 201, made.text
        assert made.json()["projects"] == ["mine"]
        yield Scene(api, client, made.json()["token"], mine, theirs)


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


@pytest.mark.parametrize("kind", ["run", "sweep", "rollout"])
def test_submission_to_another_project_is_one_clear_error_and_records_nothing(scene, kind):
    spec = {
        "run": RUN_SPEC,
        "sweep": SWEEP_SPEC,
        "rollout": {"kind": "rollout", "name": "r", "run": {"train": TRAIN}},
    }[kind]
    before = scene.counts()
    for wrong in ({"project": "theirs"}, {}):
        answer = scene.send("POST", f"/{kind}s", {"spec": {**spec, **wrong}})
        assert answer.status_code == 422, answer.text
        [problem] = answer.json()["problems"]
        assert problem["path"] == "project"
        assert problem["message"] == (
            f"project: this token cannot use project {wrong.get('project', 'default')!r}; it is "
            "limited to project mine."
        )
        assert problem["hint"].endswith("project=mine")
    assert scene.counts() == before
    answer = scene.send("POST", f"/{kind}s", {"spec": {**spec, "project": "mine"}})
    assert answer.status_code == 201, answer.text


def test_store_records_nothing_of_another_project_whatever_the_route(scene):
    from lehr import projects
    from lehr.errors import Forbidden, NotFound

    before = scene.counts()
    store = scene.api.store
    with projects.within(frozenset({"mine"})):
        with pytest.raises(Forbidden, match="cannot use project 'default'; it is limited to"):
            store.runs.create(load_spec(RUN_SPEC))
        with pytest.raises(Forbidden):
            store.sweeps.create(load_spec(SWEEP_SPEC), [({}, load_spec(RUN_SPEC))])
        with pytest.raises(NotFound):
            store.runs.set_note(scene.theirs.run, "x")
        with pytest.raises(NotFound):
            store.sweeps.set_archived(scene.theirs.sweep, True)
    assert scene.counts() == before


def test_key_of_another_token_does_not_show_what_it_made(scene):
    spec = {**RUN_SPEC, "project": "mine"}
    made = scene.client.post(
        f"{API}/runs", json={"spec": spec}, headers={"Idempotency-Key": "k1"}
    ).json()
    answer = scene.send("POST", "/runs", {"spec": spec}, **{"Idempotency-Key": "k1"})
    assert answer.status_code == 409
    assert made["id"] not in answer.text


def test_capsule_is_read_and_used_by_its_project_only(scene, tmp_path):
    theirs = scene.theirs.digest
    for ref in (theirs, theirs[:10], scene.theirs.run):
        for end in ("", "/archive", f"/diff?other={scene.mine.digest}"):
            assert scene.get(f"/code/{ref}{end}").status_code == 404, (ref, end)
    assert scene.get(f"/code/{scene.mine.run}/diff?other={theirs}").status_code == 404
    for end in ("", "/archive", f"/diff?other={scene.mine.digest}"):
        assert scene.get(f"/code/{scene.mine.digest}{end}").status_code == 200, end
    # A run that names it would make it readable.
    spec = {**RUN_SPEC, "project": "mine", "code": {"digest": theirs}}
    answer = scene.send("POST", "/runs", {"spec": spec})
    assert answer.status_code == 422
    assert "this server has no capsule" in answer.json()["detail"]
    # Who knows the digest alone has not the code.
    guess = scene.client.put(f"{API}/code/{theirs}", content=b"x", headers=bearer(scene.token))
    assert guess.status_code == 422
    assert SECRET not in guess.text
    assert scene.get(f"/code/{theirs}").status_code == 404
    # Code that the token sent can be read and submitted, before any run has it.
    digest, data = capsule(tmp_path, "print(2)\n")
    sent = scene.client.put(f"{API}/code/{digest}", content=data, headers=bearer(scene.token))
    assert sent.status_code == 200
    assert scene.get(f"/code/{digest}").status_code == 200
    spec["code"] = {"digest": digest}
    assert scene.send("POST", "/runs", {"spec": spec}).status_code == 201
    body = {"name": "ben", "role": "researcher", "projects": ["theirs"]}
    other = scene.client.post(f"{API}/tokens", json=body).json()["token"]
    assert scene.get(f"/code/{digest}", other).status_code == 404
    assert scene.get(f"/code/{theirs}", other).status_code == 200


def test_spec_names_only_secrets_of_the_tokens_projects(scene):
    for name in (f"{SECRET}-shared", "theirs.canary", "nothing"):
        spec = {**RUN_SPEC, "project": "mine", "secrets": {"TOKEN": name}}
        answer = scene.send("POST", "/runs", {"spec": spec})
        assert answer.status_code == 422
        [problem] = answer.json()["problems"]
        assert problem["hint"] == (
            "This token may name only secrets of the form mine.NAME, NAME without a dot."
        )
    spec = {**RUN_SPEC, "project": "mine", "secrets": {"TOKEN": "mine.hf"}}
    assert scene.send("POST", "/runs", {"spec": spec}).status_code == 201


def test_secret_of_a_project_whose_name_begins_like_the_tokens_project_is_anothers(scene):
    for name in ("mine.eu.hf", "mine.eu"):
        assert scene.client.put(f"{API}/secrets/{name}", json={"value": "v"}).status_code == 200
    names = [one["name"] for one in scene.get("/secrets").json()["secrets"]]
    assert names == ["mine.eu", "mine.hf"]
    spec = {**RUN_SPEC, "project": "mine", "secrets": {"TOKEN": "mine.eu.hf"}}
    assert scene.send("POST", "/runs", {"spec": spec}).status_code == 422
    body = {"name": "kim", "role": "researcher", "projects": ["mine.eu"]}
    token = scene.client.post(f"{API}/tokens", json=body).json()["token"]
    assert [s["name"] for s in scene.get("/secrets", token).json()["secrets"]] == ["mine.eu.hf"]


def test_spec_of_a_limited_token_names_no_webhook_and_learns_of_none(scene):
    hook = {"url": "https://example.org/hook"}
    assert scene.client.put(f"{API}/webhooks/{SECRET}", json=hook).status_code == 200
    for name in (SECRET, f"{SECRET}s", "nothing"):
        spec = {**RUN_SPEC, "project": "mine", "alerts": {"webhook": name}}
        answer = scene.send("POST", "/runs", {"spec": spec})
        assert answer.status_code == 422, answer.text
        [problem] = answer.json()["problems"]
        assert problem == {
            **problem,
            "path": "alerts.webhook",
            "message": "alerts.webhook: webhooks are of the whole server, and this token is "
            "limited to project mine.",
            "hint": "Leave alerts.webhook out.",
        }
        swept = {"alerts.webhook": {"values": [name]}}
        sweep = {**SWEEP_SPEC, "project": "mine", "parameters": swept}
        assert scene.send("POST", "/sweeps", {"spec": sweep}).status_code == 422
    without = {"spec": spec, "overrides": {"alerts.webhook": None}}
    assert scene.send("POST", "/runs", without).status_code == 201
    spec = {**RUN_SPEC, "alerts": {"webhook": SECRET}}
    assert scene.client.post(f"{API}/runs", json={"spec": spec}).status_code == 201


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


def searched(path: str, first: str, later: str, **run: Any) -> dict[str, Any]:
    """Return a TPE sweep whose first trial has one value, and a later one may have the other."""
    spec = {
        **SWEEP_SPEC,
        "project": "mine",
        "method": "tpe",
        "trials": 1,
        "parameters": {path: {"values": [first, later]}},
        "run": {**SWEEP_SPEC["run"], **run},
    }
    loaded = (load_spec({**spec, "seed": seed}) for seed in range(100))
    seed = next(one.seed for one in loaded if next(one.all_points()) == {path: first})
    return {**spec, "seed": seed}


@pytest.mark.parametrize("path", ["secrets.TOKEN", "code.digest"])
def test_search_names_only_what_the_token_may_use_in_later_trials_too(scene, path):
    own, other = {
        "secrets.TOKEN": ("mine.hf", f"{SECRET}-shared"),
        "code.digest": (scene.mine.digest, scene.theirs.digest),
    }[path]
    spec = searched(path, own, other)
    before = scene.counts()
    answer = scene.send("POST", "/sweeps", {"spec": spec})
    assert answer.status_code == 422, answer.text
    assert [one["path"] for one in answer.json()["problems"]] == [f"run.{path}"]
    assert scene.counts() == before
    spec["parameters"] = {path: {"values": [own]}, "train.optimizer.lr": {"min": 1e-4, "max": 1.0}}
    answer = scene.send("POST", "/sweeps", {"spec": spec})
    assert answer.status_code == 201, answer.text


def test_extension_of_a_search_is_checked_for_the_values_that_no_trial_has_yet(scene):
    own = [f"mine.s{number}" for number in range(9)]
    for name in own:
        assert scene.client.put(f"{API}/secrets/{name}", json={"value": "v"}).status_code == 200
    spec = {
        **SWEEP_SPEC,
        "project": "mine",
        "method": "tpe",
        "trials": 12,
        "parameters": {
            "secrets.TOKEN": {"values": [*own, f"{SECRET}-shared"]},
            "train.optimizer.lr": {"min": 1e-4, "max": 1.0},
        },
    }
    loaded = (load_spec({**spec, "seed": seed}) for seed in range(100))
    seed = next(
        one.seed
        for one in loaded
        if all(point["secrets.TOKEN"] in own for point in one.all_points())
    )
    made = scene.client.post(f"{API}/sweeps", json={"spec": {**spec, "seed": seed}})
    assert made.status_code == 201, made.text
    before = scene.counts()
    answer = scene.send("POST", f"/sweeps/{made.json()['id']}/extend", {"trials": 20})
    assert answer.status_code == 422, answer.text
    assert scene.counts() == before


def test_template_of_a_sweep_is_no_proof_that_its_capsule_may_be_read(scene):
    theirs = scene.theirs.digest
    spec = {
        **SWEEP_SPEC,
        "project": "mine",
        "parameters": {"code.digest": {"values": [scene.mine.digest]}},
        "run": {**SWEEP_SPEC["run"], "code": {"digest": theirs}},
    }
    # No trial has the template's capsule, so it is not used.
    assert scene.send("POST", "/sweeps", {"spec": spec}).status_code == 201
    for end in ("", "/archive", f"/diff?other={scene.mine.digest}"):
        assert scene.get(f"/code/{theirs}{end}").status_code == 404, end
    spec = {**RUN_SPEC, "project": "mine", "code": {"digest": theirs}}
    assert scene.send("POST", "/runs", {"spec": spec}).status_code == 422


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
