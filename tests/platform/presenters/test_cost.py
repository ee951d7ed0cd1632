"""Cost of runs and sweeps in the answers of the API, from recorded times of attempts."""

from pathlib import Path

import pytest

from lehr.analysis.plan import plan_run
from lehr.presenters import cost
from lehr.specs import RunSpec
from lehr_testing.api import SWEEP_SPEC, api_client, begin, ingest, line

H100 = "NVIDIA H100 80GB HBM3"


@pytest.fixture
def api(tmp_path: Path):
    with api_client(tmp_path / "home") as (api, client):
        yield api, client


def trained(api_, run_id: str, began: float, ended: float | None, *, device: str = H100) -> None:
    """Record an attempt of one GPU with these times."""
    attempt = begin(api_.store, run_id)
    ingest(api_.store, attempt, line("started", step=0, device=device, world_size=1, parameters=9))
    api_.store.attempts.update(attempt, dispatched_at=began, exited_at=ended)


def test_sweep_costs_the_gpu_hours_of_all_its_runs_at_the_price_of_the_gpu_that_trained(api):
    api_, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    assert sweep["cost"] is None
    runs = [trial["run"]["id"] for trial in sweep["trials"]]
    trained(api_, runs[0], 0.0, 7200.0)
    trained(api_, runs[1], 1000.0, 2800.0)
    found = client.get(f"/api/v1/sweeps/{sweep['id']}").json()["cost"]
    assert found["gpu_hours"] == pytest.approx(2.5)
    assert (found["attempts"], found["gpu"], found["dollars_per_gpu_hour"]) == (2, "H100", 3.0)
    assert found["dollars"] == pytest.approx(7.5)
    one = client.get(f"/api/v1/runs/{runs[0]}").json()
    assert one["cost"]["gpu_hours"] == pytest.approx(2.0)
    spec = RunSpec.model_validate(one["spec"])
    resources = spec.resources.model_copy(update={"gpu_type": "H100"})
    hours = plan_run(spec.model_copy(update={"resources": resources})).gpu_hours
    assert one["cost"]["planned_gpu_hours"] == pytest.approx(hours)
    assert found["planned_gpu_hours"] == pytest.approx(len(runs) * hours)
    assert client.get(f"/api/v1/runs/{runs[2]}").json()["cost"] is None


def test_attempt_that_was_given_up_costs_until_its_last_heartbeat(api):
    api_, client = api
    run = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()["trials"][0]["run"]["id"]
    trained(api_, run, 0.0, None)
    api_.store.attempts.record_heartbeats({f"{run}-1": (1800.0, 5)})
    api_.store.attempts.close(f"{run}-1")
    found = client.get(f"/api/v1/runs/{run}").json()["cost"]
    assert found["gpu_hours"] == pytest.approx(0.5)


def test_large_sweep_is_planned_by_some_of_its_trials(api, monkeypatch):
    api_, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    trained(api_, sweep["trials"][0]["run"]["id"], 0.0, 7200.0)
    whole = client.get(f"/api/v1/sweeps/{sweep['id']}").json()["cost"]["planned_gpu_hours"]
    monkeypatch.setattr(cost, "_PLANNED", 1)
    runs = [trial["run"]["id"] for trial in sweep["trials"]]
    part = cost.Costs(api_.store).of_runs("s", runs, device=H100, gpu_type=None)
    assert part is not None
    assert part.planned_gpu_hours == pytest.approx(whole)  # Its trials cost the same.


def test_living_attempt_costs_until_now_and_a_cpu_has_no_price(api):
    api_, client = api
    run = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()["trials"][0]["run"]["id"]
    trained(api_, run, api_.store.clock() - 3600.0, None, device="cpu")
    found = client.get(f"/api/v1/runs/{run}").json()["cost"]
    assert found["gpu_hours"] == pytest.approx(1.0, abs=0.1)
    assert found["dollars"] is None
    assert found["planned_gpu_hours"] is None


def test_run_without_a_gpu_has_no_planned_gpu_hours(api):
    api_, client = api
    spec = {**SWEEP_SPEC["run"], "kind": "run", "name": "on-cpu", "resources": {"gpus": 0}}
    run = client.post("/api/v1/runs", json={"spec": spec}).json()["id"]
    # The device as a node with GPUs reports it, though the run holds none.
    trained(api_, run, 0.0, 3600.0)
    answer = client.get(f"/api/v1/runs/{run}")
    assert answer.status_code == 200, answer.text
    assert answer.json()["cost"]["planned_gpu_hours"] == 0.0
