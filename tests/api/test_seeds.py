"""Repetitions of a run, by the route and both clients."""

from __future__ import annotations

import pytest

from lehr import Client
from lehr.errors import UserError
from lehr_testing.api import RUN_SPEC, TOKEN, api_client, begin, ingest, line, served


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


def test_client_repeats_a_run_and_the_comparison_then_has_its_noise(tmp_path):
    with served(tmp_path / "home") as (api, address):
        client = Client(address, token=TOKEN)
        base, other = (
            client.submit(
                {**RUN_SPEC, "name": name, "train": {**RUN_SPEC["train"], "steps": steps}}
            )
            for name, steps in (("base", 100), ("longer", 200))
        )
        with pytest.raises(UserError, match="n is 0"):
            base.seeds(0)
        first = base.seeds(2)
        second = [run.id for run in other.seeds(2, provenance={"host": "h"}).runs()]
        groups = [base.id, *(run.id for run in first.runs())], [other.id, *second]
        for ids, start in zip(groups, (3.0, 2.0), strict=True):
            for n, run in enumerate(ids):
                attempt = begin(api.store, run)
                values = {"val/loss": start + 0.01 * n}
                ingest(api.store, attempt, line("evaluation", step=9, tokens=1, values=values))
        found = client.compare(*groups[0], *groups[1])
        [gap] = found.gaps
        assert (
            gap.sentence == "longer is better than base by 1.000 ± 0.023 (means of 3 seeds each)."
        )
        assert [mean.partition(":")[0] for mean in found.means] == ["base", "longer"]
        assert gap.sentence in found._repr_html_()
