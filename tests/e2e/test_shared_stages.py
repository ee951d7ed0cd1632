"""A sweep over one stage: those before it are trained once, and each trial is the whole document."""

from __future__ import annotations

import os
import signal

import pytest

from lehr_testing.fakes import paced
from lehr_testing.server import events
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]
LR = "train.stages.anneal.optimizer.lr"


def values(run, metric: str) -> dict[int, float]:
    history = run.history(metric)
    return dict(zip(history["step"], history[metric], strict=True))


def test_each_trial_goes_on_where_the_trunk_ends_and_equals_the_whole_document(own_server, corpus):
    client = own_server.client()
    run = run_spec(
        corpus, "whole", schedule="cosine", batch={"sequences": 4, "sequence_length": 32}
    )
    del run["train"]["steps"]
    run["train"]["stages"] = [
        {"name": "main", "tokens": 20 * 128},
        {"name": "wide", "tokens": 10 * 256, "batch": {"sequences": 8}},
        {"name": "anneal", "tokens": 10 * 256, "batch": {"sequence_length": 64}, "schedule": "wsd"},
    ]
    spec = {"kind": "sweep", "name": "s", "parameters": {LR: {"values": [1e-4, 1e-2]}}}
    sweep = client.sweep(paced({**spec, "run": {**run, "retries": {"user": 1}}}, 0.1))
    [trunk] = {client.run(trial.run.forked_from).id for trial in sweep.detail.trials}
    trunk = client.run(trunk)
    until(lambda: (trunk.refresh().step or 0) >= 8, within_s=200, what="the trunk's first steps")
    assert {trial.run.state for trial in sweep.refresh().trials} == {"queued"}
    # Neither a killed server nor a killed trunk changes what the trials start from.
    own_server.kill()
    began = next(
        one for one in events(own_server.home, f"{trunk.id}-1") if one["kind"] == "started"
    )
    os.kill(began["host"]["pid"], signal.SIGKILL)
    own_server.up()
    sweep.wait(timeout_s=500)
    trunk.refresh()
    assert (trunk.state, trunk.view.attempt, trunk.view.total_steps) == ("completed", 2, 30)

    whole = client.submit({**run, "train": with_rate(run["train"], 1e-2)})
    whole.wait(timeout_s=300)
    trials = [client.run(trial.run.id) for trial in sweep.refresh().trials]
    assert [trial.state for trial in trials] == ["completed"] * 2
    for metric in ("data/digest", "train/loss"):
        shared = values(trunk, metric)
        for trial in trials:
            own = values(trial, metric)
            assert (max(shared), min(own), max(own)) == (30, 31, 40)
        assert {**shared, **own} == values(whole, metric), metric


def with_rate(train: dict, rate: float) -> dict:
    *before, last = train["stages"]
    return {**train, "stages": [*before, {**last, "optimizer": {"lr": rate}}]}
