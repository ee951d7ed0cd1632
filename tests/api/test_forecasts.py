"""Forecasts of live runs, and the trials that they prune."""

from __future__ import annotations

from lehr.cluster.group_loader import SweepLoader
from lehr.control.lifecycle import RunState
from lehr.control.sweeps import PruneTrial, actions
from lehr_testing.api import SWEEP_SPEC, begin, end, evaluation, ingest, metrics, started, submit


def test_live_run_has_a_forecast_of_its_end_until_it_has_ended(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started() + metrics(1, 3))
    early = client.get("/api/v1/runs/one").json()["forecast"]
    assert (early["value"], early["text"][:10]) == (None, "none yet: ")
    for step in range(10, 60, 5):
        ingest(api_.store, attempt, evaluation(step, 2.0 + 3.0 * step**-0.5))
    found = client.get("/api/v1/runs/one").json()["forecast"]
    assert (found["metric"], found["step"]) == ("val/loss", 100)
    assert found["sure"][0] < found["likely"][0] < found["value"] < found["likely"][1]
    assert f"val/loss {found['value']:.3f} at its end (68 %: " in found["text"]
    assert "from 10 losses until step 55 and the planned learning rates" in found["text"]
    end(api_.store, run["id"])
    assert client.get("/api/v1/runs/one").json()["forecast"] is None


def launch(api_, client, levels, **pruning):
    """Launch a sweep whose trials have these losses at the end, all half way."""
    spec = {**SWEEP_SPEC, "pruning": {"name": "forecast", **pruning}}
    sweep = client.post("/api/v1/sweeps", json={"spec": spec}).json()
    run_ids = [trial["run"]["id"] for trial in sweep["trials"]]
    for run_id, level in zip(run_ids, levels, strict=True):
        attempt = begin(api_.store, run_id)
        losses = (evaluation(step, level * (1 + step**-0.5)) for step in range(5, 55, 5))
        ingest(api_.store, attempt, started() + b"".join(losses) + metrics(50, 50))
    return sweep["id"], run_ids


def test_running_trial_that_cannot_win_is_pruned_by_its_forecast(api, tmp_path):
    api_, client = api
    levels = [2.0, 4.0, 2.01]
    sweep_id, run_ids = launch(api_, client, levels, min_steps=20)
    loader = SweepLoader(api_.store, tmp_path, lambda: 0.0)
    [prune] = [one for one in actions(loader.load(sweep_id)) if isinstance(one, PruneTrial)]
    assert prune.run_id == run_ids[1]
    assert "val/loss, forecast: 4.566 at step 50 is of a trial that ends worse" in prune.message
    assert all(trial.planned[0] is not None for trial in loader.load(sweep_id).trials)


def test_sweep_says_what_pruning_saved_and_the_audit_what_the_rule_would_have_stopped(api):
    api_, client = api
    store = api_.store
    levels = [2.0, 4.0, 2.001]
    first, run_ids = launch(api_, client, levels)
    audit = client.get(f"/api/v1/sweeps/{first}/audit").json()
    assert (audit["trainings"], audit["stopped"]) == (0, 0)
    assert audit["text"].startswith("No sweep without pruning has finished")
    for run_id, level in zip(run_ids, levels, strict=True):
        losses = (evaluation(step, level * (1 + step**-0.5)) for step in range(55, 105, 5))
        ingest(store, f"{run_id}-1", b"".join(losses))
        store.attempts.update(f"{run_id}-1", dispatched_at=0.0, exited_at=3600.0)
        end(store, run_id)
    audit = client.get(f"/api/v1/sweeps/{first}/audit").json()
    assert (audit["trainings"], audit["stopped"], audit["stopped_best"]) == (3, 1, 0)
    assert audit["gpu_hours"] == 3.0
    assert 0.3 < audit["saved_gpu_hours"] < 1.0
    assert audit["text"].startswith(
        "Of 3 finished trainings, the rule forecast would have stopped 1"
    )
    # The trials of a sweep that was pruned have no ends to compare with.
    second, others = launch(api_, client, levels, min_steps=20)
    for state in (RunState.STOPPING, RunState.PRUNED):
        end(store, others[1], state)
    for run_id in (others[0], others[2]):
        end(store, run_id)
    notes = client.get(f"/api/v1/sweeps/{second}").json()["notes"]
    assert any("Pruning ended 1 of 3 trials, after 50 % of their steps" in note for note in notes)
    assert client.get(f"/api/v1/sweeps/{second}/audit").json()["trainings"] == 3
