"""Runs of a program whose number of steps only the program knows, in each answer of the API."""

from __future__ import annotations

from lehr.faces.cli.group_table import sweep_eta
from lehr.schemas.sweeps import SweepDetail
from lehr_testing.api import RUN_SPEC, begin, end, finished, ingest, line, metrics

PROGRAM = {"trainer": {"module": "mine.train", "args": {"epochs": 3, "lr": 0.1}}}
RUN = {"kind": "run", "name": "p", "resources": {"gpus": 1}, **PROGRAM}
RATES = {"trainer.args.lr": {"values": [0.1, 0.2, 0.3]}}


def submit(client, path="runs", **fields):
    answer = client.post(f"/api/v1/{path}", json={"spec": fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


def started(api, run_id, steps):
    attempt = begin(api.store, run_id)
    ingest(api.store, attempt, line("started", device="cpu", total_steps=0) + metrics(1, steps))
    return attempt


def get(client, path):
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer


def test_run_shows_its_step_alone(api):
    api_, client = api
    run_id = submit(client, **RUN)["id"]
    attempt = started(api_, run_id, 40)
    for run in (get(client, f"runs/{run_id}").json(), get(client, "runs").json()["items"][0]):
        assert (run["step"], run["total_steps"], run["eta_s"]) == (40, 0, None)
    assert "step 40;" in get(client, f"reports/{run_id}").text
    ingest(api_.store, attempt, finished(40))
    end(api_.store, run_id)
    [summary] = get(client, "runs").json()["items"]
    assert (summary["state"], summary["step"], summary["total_steps"]) == ("completed", 40, 0)
    other = submit(client, **{**RUN_SPEC, "name": "other"})
    started(api_, other["id"], 3)
    compared = get(client, f"compare?run={run_id}&run={other['id']}").json()
    assert compared["runs"] == [run_id, other["id"]]


def test_page_has_the_first_metrics_of_a_program_losses_first(api):
    api_, client = api
    run_id = submit(client, **RUN)["id"]
    attempt = begin(api_.store, run_id)
    values = {"a": 1, "b": 2, "c": 3, "d": 4, "acc": 0.5, "my/loss": 2.5, "eval/loss": 3.5}
    ingest(api_.store, attempt, line("metrics", step=1, tokens=0, values=values))
    latest = get(client, f"runs/{run_id}").json()["latest"]
    assert list(latest) == ["eval/loss", "my/loss", "a", "acc", "b"]
    assert get(client, "runs").json()["items"][0]["latest"] == {}


def test_sweep_counts_ended_trials_in_place_of_steps(api):
    api_, client = api
    sweep = submit(
        client,
        "sweeps",
        kind="sweep",
        name="s",
        parameters=RATES,
        pruning={"name": "median"},
        run={"resources": {"gpus": 1}, **PROGRAM},
    )
    first, second, _ = (trial["run"]["id"] for trial in sweep["trials"])
    ingest(api_.store, started(api_, first, 40), finished(40))
    end(api_.store, first)
    started(api_, second, 10)
    for query in ("", "?limit=2"):
        view = SweepDetail.model_validate(get(client, f"sweeps/{sweep['id']}{query}").json())
        assert (view.steps_made, view.steps_done, view.steps_total) == (50, 50, 0)
        assert [trial.run.total_steps for trial in view.trials] == [0] * len(view.trials)
        assert sweep_eta(view) is None
    assert get(client, f"reports/{sweep['id']}").status_code == 200
