"""Forecasts of live runs."""

from __future__ import annotations

from lehr_testing.api import begin, end, evaluation, ingest, metrics, started, submit


def test_live_run_has_a_forecast_of_its_end_until_it_has_ended(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started() + metrics(1, 3))
    early = client.get("/api/v1/runs/one").json()["forecast"]
    assert early["value"] is None
    assert early["text"].startswith("none yet: ")
    for step in range(10, 60, 5):
        ingest(api_.store, attempt, evaluation(step, 2.0 + 3.0 * step**-0.5))
    found = client.get("/api/v1/runs/one").json()["forecast"]
    assert (found["metric"], found["step"]) == ("val/loss", 100)
    assert found["sure"][0] < found["likely"][0] < found["value"] < found["likely"][1]
    assert f"val/loss {found['value']:.3f} at its end (68 %: " in found["text"]
    assert "from 10 losses until step 55 and the planned learning rates" in found["text"]
    end(api_.store, run["id"])
    assert client.get("/api/v1/runs/one").json()["forecast"] is None
