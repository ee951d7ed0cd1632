"""What the spec of a token that is limited to one project may name, and what it records."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC
from lehr_testing.rollouts import TRAIN

from .projects import API, SECRET, bearer, capsule


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
