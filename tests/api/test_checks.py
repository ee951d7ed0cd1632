"""Checks of a submission: what they refuse, and that they record nothing."""

from __future__ import annotations

import copy

import pytest

from lehr.control.resources import Need, can_ever_place
from lehr_testing import rollouts
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, api_client, changed, counts

ROLLOUT_SPEC = rollouts.plain(name="up")
SPECS = {"run": RUN_SPEC, "sweep": SWEEP_SPEC, "rollout": ROLLOUT_SPEC}


def asked(client, kind, spec, **more):
    return client.post("/api/v1/checks", json={"kind": kind, "spec": spec, **more})


@pytest.mark.parametrize("kind", SPECS)
def test_good_spec_is_accepted_and_not_recorded(api, kind):
    api_, client = api
    answer = asked(client, kind, SPECS[kind])
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"kind": kind, "name": SPECS[kind]["name"], "warnings": []}
    assert counts(api_) == (0, 0)
    assert api_.store.rollouts.page().total == 0
    assert api_.dispatcher.woken == 0


WRONG = {
    "more GPUs than there are": {"resources": {"gpus": 16}},
    "no shared folder of runs": {"resources": {"gpus": 4, "nodes": 2}},
    "unknown secret": {"secrets": {"HF_TOKEN": "no-such"}},
    "unknown webhook": {"alerts": {"webhook": "no-such"}},
    "unknown capsule": {"code": {"digest": "0" * 64}},
    "GPU type with a typing error": {"resources": {"gpus": 1, "gpu_type": "A10O"}},
    "missing corpus": {"train.data.corpus": {"kind": "text", "paths": ["/no/such/folder"]}},
    "not a field": {"train.optimizer.learning_rate": 1e-3},
}


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("change", WRONG)
def test_check_refuses_what_the_submission_refuses_with_the_same_error(api, kind, change):
    api_, client = api
    api_.dispatcher.separate = ["n1", "n2"]
    spec = copy.deepcopy(SPECS[kind])
    spec = changed(
        spec, "train.batch.sequences" if kind == "run" else "run.train.batch.sequences", 16
    )
    for path, value in WRONG[change].items():
        spec = changed(spec, path if kind == "run" else f"run.{path}", value)
    real = client.post(f"/api/v1/{kind}s", json={"spec": spec})
    assert real.status_code == 422, real.text
    answer = asked(client, kind, spec)
    assert (answer.status_code, answer.json()) == (real.status_code, real.json())
    assert counts(api_) == (0, 0)


@pytest.mark.parametrize(
    ("separate", "resources", "start"),
    [
        (["n1", "n2"], {}, "Its checkpoints stay on the node"),
        ([], {"gpus": 1, "gpu_type": "H100"}, "No node has 1 x H100; one may join. Until then"),
        ([], {"gpus": 2, "nodes": 2, "gpu_type": "B200"}, "Fewer than 2 nodes have 1 x B200;"),
    ],
)
def test_warnings_are_those_of_the_recorded_run(api, separate, resources, start):
    api_, client = api
    api_.dispatcher.separate = separate
    for kind in ("run", "sweep"):
        place = "resources" if kind == "run" else "run.resources"
        spec = changed(copy.deepcopy(SPECS[kind]), place, resources)
        [warning] = asked(client, kind, spec).json()["warnings"]
        assert warning.startswith(start)
        real = client.post(f"/api/v1/{kind}s", json={"spec": spec}).json()
        assert real["warnings"] == [warning]
    # A run that waits for what its warning says need not say it twice.
    run = api_.store.runs.page(limit=1).items[0]
    reason = can_ever_place(Need(**run.spec["resources"]), api_.dispatcher.nodes())
    api_.store.runs.set_pending_reasons({run.id: reason})
    waiting = client.get(f"/api/v1/runs/{run.id}").json()
    assert waiting["warnings"] == ([] if reason else [warning])


def test_code_that_comes_with_the_submission_need_not_be_here(api, tmp_path):
    _, client = api
    spec = changed(RUN_SPEC, "code.digest", "0" * 64)
    assert asked(client, "run", spec, code_sent=False).status_code == 200
    with api_client(tmp_path / "closed", code="installed") as (_, closed):
        refused = asked(closed, "run", spec, code_sent=False)
    assert refused.status_code == 422
    assert "this server accepts no code" in refused.json()["detail"]


@pytest.mark.parametrize(("factors", "accepted"), [({}, False), ({"mfu": 0.01}, True)])
def test_sweep_is_judged_by_no_metric_of_a_script_whose_unit_is_unknown(api, factors, accepted):
    _, client = api
    run = {
        "trainer": {"script": "train.py", "args": {"lr": 1e-3}, "factors": factors},
        "code": {"digest": "0" * 64},
    }
    rates = {"trainer.args.lr": {"values": [1e-3, 1e-2]}}
    spec = {"kind": "sweep", "name": "fast", "run": run, "parameters": rates}
    answer = asked(client, "sweep", {**spec, "metric": {"name": "mfu"}}, code_sent=False)
    assert (answer.status_code == 200) == accepted, answer.text
    assert accepted or "it is recorded as program/mfu" in answer.text
