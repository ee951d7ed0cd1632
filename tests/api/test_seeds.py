"""Repetitions of a run, by the route and both clients."""

from __future__ import annotations

from lehr_testing.api import RUN_SPEC, api_client


def test_route_records_once_for_each_key_and_refuses_bad_numbers(tmp_path):
    with api_client(tmp_path / "home") as (_, client):
        run = client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
        url = f"/api/v1/runs/{run}/seeds"
        made = [client.post(url, json={"n": 2}, headers={"Idempotency-Key": "k"}) for _ in "ab"]
        assert [one.status_code for one in made] == [201, 201]
        assert made[0].json()["id"] == made[1].json()["id"]
        assert made[0].json()["counts"] == {"queued": 2}
        refused = client.post(url, json={"n": 21})
        assert refused.status_code == 422
        assert refused.json()["detail"] == "n is 21; it must be 1 to 20."
        assert client.post(url, json={"n": "2"}).status_code == 422
        assert client.post("/api/v1/runs/nothing/seeds", json={}).status_code == 404
        assert client.get("/api/v1/sweeps").json()["total"] == 1
