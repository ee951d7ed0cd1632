"""The routes by which machines join and leave: who may call them, and what they answer."""

from __future__ import annotations

import time

import pytest

from lehr.base import signed_tokens
from lehr.cluster.ray_head import RayAccess, ray_access
from lehr.control.nodes import LEFT
from lehr.errors import Conflict, RayStarting
from lehr.faces.client.problems import problem_error
from lehr.schemas.cluster import ClusterView
from lehr_api.routes import cluster as routes
from lehr_testing.api import TOKEN

JOIN, LEAVE = "/api/v1/cluster/join", "/api/v1/cluster/leave"


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_join_token_gets_what_a_machine_needs(client, monkeypatch):
    access = RayAccess("10.0.0.1:6379", "ray's token", session="one")
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: access)
    token = signed_tokens.join_token(TOKEN, time.time() + 60)
    found = client.post(JOIN, json={"node": "gpu-2"}, headers=bearer(token)).json()
    assert (found["ray_address"], found["ray_token"]) == ("10.0.0.1:6379", "ray's token")
    assert found["name_in_use"] is None
    assert {"python", "ray", "lehr"} <= set(found["versions"])
    own = bearer(found["node_token"])
    assert client.post(JOIN, json={"node": "gpu-2"}, headers=own).status_code == 200
    other = client.post(JOIN, json={"node": "gpu-3"}, headers=own)
    assert other.status_code == 401
    assert "the token is that of node gpu-2, not of gpu-3" in other.json()["detail"]


def test_check_gets_no_secrets_and_changes_nothing(api, monkeypatch):
    access = RayAccess("10.0.0.1:6379", "ray's token", session="one")
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: access)
    client, dispatcher = api[1], api[0].dispatcher
    dispatcher.exclude_node("n1", LEFT)
    token = signed_tokens.join_token(TOKEN, time.time() + 60)
    body = {"node": "n1", "check": True, "readmit": True}
    found = client.post(JOIN, json=body, headers=bearer(token)).json()
    assert (found["ray_address"], found["ray_token"]) == ("10.0.0.1:6379", None)
    assert found["node_token"] == ""
    assert dispatcher.excluded == {"n1": LEFT}


def test_machines_token_opens_no_other_route(client):
    for token in (
        signed_tokens.join_token(TOKEN, time.time() + 60),
        signed_tokens.node_token(TOKEN, "gpu-2"),
    ):
        for path in ("/api/v1/runs", "/api/v1/cluster", "/", "/metrics"):
            assert client.get(path, headers=bearer(token)).status_code == 401, path
        act = client.post("/api/v1/runs", json={"spec": {}}, headers=bearer(token))
        assert act.status_code == 401


def test_node_that_leaves_is_excluded_until_it_joins_again(api, monkeypatch):
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: RayAccess("10.0.0.1:1", None))
    client, dispatcher = api[1], api[0].dispatcher
    own = bearer(signed_tokens.node_token(TOKEN, "n1"))
    assert client.post(LEAVE, json={"node": "n1"}, headers=own).json()["excluded"]
    assert dispatcher.excluded == {"n1": LEFT}
    # Its keeper, which still asks while the machine drains, changes nothing.
    client.post(JOIN, json={"node": "n1"}, headers=own)
    assert dispatcher.excluded == {"n1": LEFT}
    client.post(JOIN, json={"node": "n1", "readmit": True}, headers=own)
    assert dispatcher.excluded == {}
    dispatcher.exclude_node("n1", "its fans are replaced")
    client.post(JOIN, json={"node": "n1", "readmit": True}, headers=own)
    assert dispatcher.excluded == {"n1": "its fans are replaced"}


def test_token_for_joining_makes_no_node_leave(api):
    client, dispatcher = api[1], api[0].dispatcher
    token = bearer(signed_tokens.join_token(TOKEN, time.time() + 60))
    refused = client.post(LEAVE, json={"node": "n1"}, headers=token)
    assert refused.status_code == 401
    assert "allows nothing but joining" in refused.json()["detail"]
    assert dispatcher.excluded == {}


def test_server_for_its_own_machine_alone_cannot_be_joined(client):
    answer = client.post(JOIN, json={"node": "gpu-2"})
    assert answer.status_code == 409
    assert "On the server's machine: lehr down" in answer.json()["hint"]
    assert "--public-url" in answer.json()["hint"]


def test_outer_ray_gives_its_token_from_where_ray_finds_it(tmp_path, monkeypatch):
    url = "http://10.0.0.1:5347"
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert ray_access(tmp_path, ray_address="10.0.0.7:6379", server_url=url) == RayAccess(
        "10.0.0.7:6379", None
    )
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(Conflict, match="Ray's token cannot be read"):
        ray_access(tmp_path, ray_address="10.0.0.7:6379", server_url=url)
    (tmp_path / "token").write_text("secret\n")
    # A head on the server's machine has another address for other machines.
    found = ray_access(tmp_path, ray_address="127.0.0.1:6379", server_url=url)
    assert (found.address, found.token) == ("10.0.0.1:6379", "secret")
    assert "secret" not in repr(found)


def test_machine_does_not_join_while_ray_starts(api, monkeypatch):
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: RayAccess("10.0.0.1:1", None))
    starting = ClusterView(state="starting", nodes=[], gpus_total=0, gpus_busy=0)
    monkeypatch.setattr(api[0].dispatcher, "cluster", lambda: starting)
    answer = api[1].post(JOIN, json={"node": "gpu-2"})
    assert (answer.status_code, answer.json()["detail"]) == (409, "Ray is still starting.")
    starting.message = "the last try failed: no space left"
    answer = api[1].post(JOIN, json={"node": "gpu-2"})
    assert answer.json()["detail"] == "Ray is still starting (the last try failed: no space left)."
    assert isinstance(problem_error(answer.status_code, answer.content), RayStarting)


def test_machine_joins_until_a_time_and_a_later_join_keeps_it_until_it_is_over(api, monkeypatch):
    monkeypatch.setattr(routes, "ray_access", lambda *_, **__: RayAccess("10.0.0.1:1", None))
    made, client = api
    until, own = made.store.clock() + 3600, bearer(signed_tokens.node_token(TOKEN, "n1"))

    def join(**body):
        answer = client.post(JOIN, json={"node": "n1", **body}, headers=own)
        assert answer.status_code == 200, answer.json()
        return made.store.nodes.until()

    over = client.post(JOIN, json={"node": "n1", "readmit": True, "until": 1.0}, headers=own)
    assert over.status_code == 422
    assert "it must be after now" in over.json()["detail"]
    # A check and a keeper's question change nothing.
    assert join(until=until) == join(until=until, readmit=True, check=True) == {}
    assert join(until=until, readmit=True) == {"n1": until}
    assert join(readmit=True) == {"n1": until}
    made.store.nodes.set_until("n1", made.store.clock() - 1)
    assert join(readmit=True) == {}
