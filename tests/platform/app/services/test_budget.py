"""The budget of a named token: what counts, what is refused, and what is paused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from lehr.app.services.budget import pause_overrun
from lehr.control.lifecycle import RunState
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    Api,
    api_client,
    begin,
    end,
    finished,
    ingest,
    line,
    metrics,
    started,
)
from lehr_testing.routes import concrete, walk

HOUR = 3600.0
RUNS = "/api/v1/runs"


class Holder:
    """Somebody with a token that has a budget of three GPU-hours."""

    def __init__(self, api: Api, client: TestClient) -> None:
        self.api, self.client = api, client
        body = {"name": "agent", "role": "researcher", "gpu_hours": 3}
        token = client.post("/api/v1/tokens", json=body).json()["token"]
        self.headers = {"Authorization": f"Bearer {token}"}

    def __call__(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        answer = self.client.request(method, path, json=body, headers=self.headers)
        assert answer.status_code == status, answer.text
        return answer.json()

    def submit(self, name: str, hours: float = 1.0, status: int = 201, **more: Any) -> Any:
        return self("POST", RUNS, {"spec": spec(name, hours, **more)}, status)

    def budget(self) -> tuple[float, float, float]:
        view = self("GET", "/api/v1/budget")
        return tuple(round(view[name], 2) for name in ("used", "promised", "left"))

    def use(self, run_id: str, hours: float, state: RunState | None = None) -> None:
        """Have a new attempt of the run use GPU-hours; end it if a state is given."""
        store = self.api.store
        number = store.runs.get(run_id).attempt + 1
        attempt = begin(store, run_id, number)
        ingest(store, attempt, started(number) + metrics(1, 50))
        store.attempts.update(attempt, dispatched_at=time.time() - hours * HOUR)
        if state is not None:
            ingest(store, attempt, finished(50, state.value))
            store.attempts.update(attempt, exited_at=time.time(), exit={"code": 0})
            end(store, run_id, state)


def spec(name: str, hours: float = 1.0, **more: Any) -> dict[str, Any]:
    return {**RUN_SPEC, "name": name, "time_limit_s": hours * HOUR, **more}


def grid(*values: float) -> dict[str, Any]:
    parameters = {"train.optimizer.lr": {"values": list(values)}}
    return {
        **SWEEP_SPEC,
        "parameters": parameters,
        "run": {**SWEEP_SPEC["run"], "time_limit_s": HOUR},
    }


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    with api_client(tmp_path) as (api, client):
        yield Holder(api, client)


def test_launch_over_the_budget_is_refused_with_its_figures_and_nothing_is_recorded(
    holder: Holder,
) -> None:
    holder.submit("two", 2)
    problem = holder.submit("more", 2, status=403)
    assert problem["detail"] == (
        "over the budget of the token 'agent': this needs 2.00 GPU-hours, and 1.00 GPU-hours of "
        "3.00 GPU-hours are left (under 0.01 GPU-hours used, 2.00 GPU-hours planned for runs that "
        "have not ended)."
    )
    holder("POST", "/api/v1/sweeps", {"spec": grid(1e-4, 1e-3)}, 403)
    holder("POST", "/api/v1/checks", {"kind": "sweep", "spec": grid(1e-4, 1e-3)}, 403)
    assert holder.api.store.runs.page().total == 1
    holder("POST", "/api/v1/sweeps", {"spec": grid(1e-4)}, 201)
    assert holder.budget() == (0.0, 3.0, 0.0)
    # Somebody without a budget is not limited, nor is a run without GPUs.
    assert holder.client.post(RUNS, json={"spec": spec("of-a-person", 9)}).status_code == 201
    holder.submit("cpu", 9, resources={"gpus": 0})


def test_time_that_cannot_be_planned_is_refused_and_a_known_gpu_needs_no_limit(
    holder: Holder,
) -> None:
    problem = holder("POST", RUNS, {"spec": RUN_SPEC}, 403)
    assert "the time of one cannot be planned" in problem["detail"]
    assert "time_limit_s" in problem["hint"]
    train = {**RUN_SPEC["train"], "model": "llama-1b", "steps": 1000}
    known = {**RUN_SPEC, "resources": {"gpus": 1, "gpu_type": "H100"}, "train": train}
    holder("POST", RUNS, {"spec": known}, 201)
    assert 0 < holder("GET", "/api/v1/budget")["promised"] < 1


def test_ended_run_counts_what_it_used_and_a_retry_counts_again(holder: Holder) -> None:
    failed = holder.submit("fails", 2)["id"]
    holder.use(failed, 0.5, RunState.FAILED)
    assert holder.budget() == (0.5, 0.0, 2.5)
    holder("POST", f"{RUNS}/{failed}/retry")
    assert holder.budget() == (0.5, 1.5, 1.0)
    # A rotated token is the same holder's.
    holder.client.post("/api/v1/tokens/agent/rotate")
    [token] = holder.client.get("/api/v1/tokens").json()["tokens"]
    assert token["gpu_hours"] == 3.0
    assert len(holder.api.store.runs.ids_of_person("agent")) == 1


def test_forks_seeds_and_added_trials_are_planned(holder: Holder) -> None:
    base = holder.client.post(RUNS, json={"spec": spec("base")}).json()["id"]
    holder.use(base, 0.5)
    saved = {"path": "attempt-1/checkpoints/step-00000050", "size_bytes": 9, "digest": "a" * 64}
    ingest(holder.api.store, f"{base}-1", line("checkpoint", step=50, **saved))
    end(holder.api.store, base)
    (holder.api.settings.home / "runs" / base / saved["path"]).mkdir(parents=True)
    (holder.api.settings.home / "runs" / base / saved["path"] / "manifest.json").write_text("{}")
    holder("POST", f"{RUNS}/{base}/fork", {}, 201)
    assert holder.budget() == (0.0, 1.0, 2.0)
    holder("POST", f"{RUNS}/{base}/seeds", {"n": 3}, 403)
    holder("POST", f"{RUNS}/{base}/seeds", {"n": 1}, 201)
    others = holder.client.post("/api/v1/sweeps", json={"spec": grid(1e-4)}).json()["id"]
    more = {"parameters": {"train.optimizer.lr": [1e-3, 1e-2]}}
    holder("POST", f"/api/v1/sweeps/{others}/extend", more, 403)
    more["parameters"]["train.optimizer.lr"].pop()
    holder("POST", f"/api/v1/sweeps/{others}/extend", more)
    assert holder.budget() == (0.0, 3.0, 0.0)


def test_rollout_counts_all_its_stages_and_its_runs_are_of_its_submitter(holder: Holder) -> None:
    run = {"train": RUN_SPEC["train"], "resources": {"gpus": 2}, "time_limit_s": 2 * HOUR}
    rollout = {"kind": "rollout", "name": "up", "run": run}
    assert "over the budget" in holder("POST", "/api/v1/rollouts", {"spec": rollout}, 403)["detail"]
    run["time_limit_s"] = 60
    made = holder("POST", "/api/v1/rollouts", {"spec": rollout}, 201)["id"]
    assert holder.api.store.rollouts.get(made).submitted_by == "agent"


def test_runs_are_paused_once_more_is_used_than_the_budget(holder: Holder) -> None:
    store = holder.api.store
    slow, waits = holder.submit("slow")["id"], holder.submit("waits")["id"]
    other = holder.client.post(RUNS, json={"spec": spec("of-a-person")}).json()["id"]
    holder.use(slow, 2.5)
    services = holder.api.services
    assert services is not None
    assert pause_overrun(services) == []
    store.attempts.update(f"{slow}-1", dispatched_at=time.time() - 4 * HOUR)
    assert pause_overrun(services) == [slow, waits]
    assert pause_overrun(services) == []
    assert [store.runs.get(run).desired for run in (slow, waits, other)] == [
        "pause",
        "pause",
        "run",
    ]
    assert store.requests.of_run(slow)[-1].message == (
        "the budget of agent is used up: 3.00 GPU-hours"
    )
    assert "over the budget" in holder("POST", f"{RUNS}/{slow}/resume", status=403)["detail"]


def test_each_route_that_changes_a_run_refuses_those_of_others(holder: Holder) -> None:
    client = holder.client
    ids = {
        "runs": client.post(RUNS, json={"spec": spec("theirs")}).json()["id"],
        "sweeps": client.post("/api/v1/sweeps", json={"spec": grid(1e-4)}).json()["id"],
    }
    starts_its_own = ("/fork", "/seeds", "/transfer", "/verify", "/extend", "/recorded")
    refused = set()
    for path, method in walk(client.app.routes):
        noun = path.split("/")[3] if path.count("/") > 3 else ""
        if method in {"GET", "HEAD"} or noun not in ids or path.endswith(starts_its_own):
            continue
        url = concrete(path.replace("{ref}", ids[noun]).replace("{step}", "1"))
        answer = client.request(method, url, headers=holder.headers, json={})
        if answer.status_code == 422:  # It has a body that is not empty.
            continue
        assert answer.status_code == 403, (method, path, answer.text)
        assert "has a budget, and changes only what it submitted" in answer.json()["detail"]
        refused.add((method, path.removeprefix("/api/v1")))
    assert {("POST", "/runs/{ref}/cancel"), ("DELETE", "/runs/{ref}")} <= refused
    assert {("POST", "/sweeps/{ref}/retry"), ("POST", "/sweeps/{ref}/cancel")} <= refused
    holder("POST", f"/api/v1/sweeps/{ids['sweeps']}/extend", {"trials": 1}, 403)
    mine = holder.submit("mine")["id"]
    holder("POST", f"{RUNS}/{mine}/cancel")


def test_stages_that_trials_share_count_once(holder: Holder) -> None:
    train = {k: v for k, v in RUN_SPEC["train"].items() if k != "steps"} | {"model": "llama-1b"}
    train["stages"] = [{"tokens": 900_000 * 256}, {"tokens": 100_000 * 256, "schedule": "constant"}]
    run = {**RUN_SPEC, "resources": {"gpus": 1, "gpu_type": "H100"}, "train": train}
    holder("POST", RUNS, {"spec": run}, 201)
    _, whole, _ = holder.budget()
    assert whole > 0.2
    parameters = {"train.stages.1.optimizer.lr": {"values": [1e-5, 1e-4, 1e-3]}}
    sweep = {**SWEEP_SPEC, "run": run, "parameters": parameters}
    holder("POST", "/api/v1/sweeps", {"spec": sweep}, 201)
    _, both, _ = holder.budget()
    assert both == pytest.approx((1 + 0.9 + 3 * 0.1) * whole, abs=0.02)
