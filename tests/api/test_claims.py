"""Claims over HTTP: what is refused, which pairs count, and the verdicts on many of them."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lehr.analysis.claims import ALPHA, FIRST, required
from lehr.code import archive
from lehr.code.archive import SourceFile
from lehr.control.lifecycle import RunState
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    api_client,
    begin,
    end,
    evaluation,
    ingest,
    started,
    submit,
)
from lehr_testing.paths import ROOT
from lehr_testing.stores import memory_folder

RUNS = "/api/v1/runs"
CLAIM = {"hypothesis": "qk-norm lowers val/loss"}


@pytest.fixture
def baseline(client) -> str:
    return submit(client, name="base")["id"]


def judge(client, run_id: str, *, add: bool = False, status: int = 200) -> dict[str, Any]:
    answer = client.post(f"{RUNS}/{run_id}/judge", params={"add_seeds": add})
    assert answer.status_code == status, answer.text
    return answer.json()


def claim_of(client, baseline: str, **fields: Any) -> str:
    return submit(client, name="candidate", baseline=baseline, **{**CLAIM, **fields})["id"]


def runs_of(store, sweep_id: str) -> list[Any]:
    return [store.runs.get(one.run_id) for one in store.sweeps.outlines(sweep_id)]


def finish(store, run: Any, loss: float | str, *, step: int = 100, held_out: str = "a") -> None:
    attempt = begin(store, run.id)
    ingest(store, attempt, started() + evaluation(step, loss, held_out * 8))
    end(store, run.id)


def finish_pairs(store, claim: dict[str, Any], gains: list[float]) -> None:
    """End the newest pairs with these differences of their losses."""
    ours, theirs = (runs_of(store, sweep_id) for sweep_id in claim["sweeps"][-1])
    for one, other, gain in zip(ours, theirs, gains, strict=True):
        finish(store, one, 3.0 - gain)
        finish(store, other, 3.0)


def test_a_claim_is_kept_by_pairs_that_the_server_started(client, store, baseline):
    run = claim_of(client, baseline)
    assert judge(client, run)["next_pairs"] == FIRST
    # Neither the run itself nor a repetition of it counts: its seed was chosen.
    client.post(f"{RUNS}/{run}/seeds", json={"n": 2})
    claim = judge(client, run, add=True)
    assert (claim["verdict"], claim["sentence"]) == ("undecided", "6 more pairs are training.")
    assert judge(client, run, add=True)["sweeps"] == claim["sweeps"]
    ours, theirs = (runs_of(store, sweep_id) for sweep_id in claim["sweeps"][0])
    assert [one.spec["train"]["seed"] for one in ours] == [
        one.spec["train"]["seed"] for one in theirs
    ]
    assert {one.name for one in ours} == {f"candidate-seeds-{n}" for n in range(1, FIRST + 1)}
    assert all("hypothesis" not in one.spec and one.claim is None for one in (*ours, *theirs))
    finish_pairs(store, claim, [0.5, 0.51, 0.49, 0.5, 0.52, 0.48])
    kept = judge(client, run)
    assert (kept["verdict"], kept["pairs"], kept["number"]) == ("keep", 6, 1)
    assert kept["gain"] == pytest.approx(0.5)
    assert kept["sentence"].startswith("val/loss gains 0.500 ± 0.015 by 6 pairs of seeds; evidence")
    assert judge(client, run, add=True) == kept
    second = claim_of(client, baseline)
    listed = client.get("/api/v1/claims").json()["items"]
    assert [one["verdict"] for one in listed] == ["keep", "undecided"]
    assert judge(client, second)["needed"] == pytest.approx(required(2, 1))


def test_every_seed_counts(client, store, baseline):
    claim = judge(client, claim_of(client, baseline), add=True)
    ours, theirs = (runs_of(store, sweep_id) for sweep_id in claim["sweeps"][0])
    for run in (*ours[1:], *theirs):
        finish(store, run, 3.0)
    begin(store, ours[0].id)
    assert judge(client, claim["run_id"])["sentence"] == "1 of 6 pairs are training."
    end(store, ours[0].id, RunState.FAILED)
    blocked = judge(client, claim["run_id"], add=True)
    assert "all seeds count" in blocked["sentence"]
    assert "candidate-seeds-1 (failed)" in blocked["sentence"]
    assert (blocked["verdict"], len(blocked["sweeps"])) == ("undecided", 1)


@pytest.mark.parametrize(
    ("last", "verdict", "words"),
    [
        ({"loss": "NaN"}, "reject", "1 of 6 seeds diverged"),
        ({"loss": 2.0, "step": 90}, "undecided", "no val/loss at the same step"),
        ({"loss": 2.0, "held_out": "b"}, None, "2 different held-out sets"),
    ],
)
def test_a_value_that_cannot_be_compared(client, store, baseline, last, verdict, words):
    claim = judge(client, claim_of(client, baseline), add=True)
    ours, theirs = (runs_of(store, sweep_id) for sweep_id in claim["sweeps"][0])
    for run in (*ours[:-1], *theirs):
        finish(store, run, 3.0)
    finish(store, ours[-1], **last)
    answer = judge(client, claim["run_id"], status=200 if verdict else 409)
    assert words in answer.get("sentence", answer.get("detail", ""))
    assert answer.get("verdict") == verdict


def test_a_claim_needs_a_baseline_that_is_like_it(client, store, baseline):
    def refused(**fields: Any) -> str:
        answer = client.post(RUNS, json={"spec": {**RUN_SPEC, **fields}})
        assert answer.status_code == 422, answer.text
        [problem] = answer.json()["problems"]
        return problem["message"]

    before = store.runs.page().total
    needs = "a claim needs a hypothesis with a direction and a metric"
    assert needs in refused(**CLAIM)
    assert needs in refused(baseline=baseline)
    assert needs in refused(baseline=baseline, hypothesis="qk-norm is better")
    assert "no run 'nothing'" in refused(baseline="nothing", **CLAIM)
    assert f"write the id of base ({baseline})" in refused(baseline="base", **CLAIM)
    shorter = {**RUN_SPEC["train"], "steps": 50}
    assert "the number of steps must be the same" in refused(
        baseline=baseline, train=shorter, **CLAIM
    )
    assert store.runs.page().total == before
    assert "makes no claim" in judge(client, baseline, status=422)["detail"]


def test_each_trial_makes_a_claim_and_a_rollout_makes_none(client, store, baseline):
    run = {**SWEEP_SPEC["run"], "baseline": baseline, **CLAIM}
    answer = client.post("/api/v1/sweeps", json={"spec": {**SWEEP_SPEC, "run": run}})
    assert answer.status_code == 201, answer.text
    claims = client.get("/api/v1/claims").json()["items"]
    assert [one["number"] for one in claims] == [1, 2, 3]
    rollout = {"kind": "rollout", "name": "r", "run": run}
    answer = client.post("/api/v1/rollouts", json={"spec": rollout})
    assert "a rollout makes no claim" in answer.json()["detail"]


def capsule(client, folder: Path, **files: str) -> str:
    """Send a project of these files; return its digest."""
    folder.mkdir(exist_ok=True)
    sources = []
    for name, text in files.items():
        (folder / name).write_text(text)
        sources.append(SourceFile(f"project/{name}.py", os.fspath(folder / name), False))
    output = io.BytesIO()
    digest, _ = archive.write(sources, output)
    assert client.put(f"/api/v1/code/{digest}", content=output.getvalue()).status_code == 200
    return digest


@pytest.mark.parametrize(
    ("evaluation", "changed", "names"),
    [
        (["eval.py"], {"eval": "2"}, ["eval.py"]),
        (["eval.py"], {"train": "2"}, []),
        ([], {"train": "2"}, ["train.py"]),
    ],
)
def test_a_script_that_changes_its_evaluation_is_refused_by_the_file(
    client, tmp_path, evaluation, changed, names
):
    def spec(files: dict[str, str], evaluation: list[str], **fields: Any) -> dict[str, Any]:
        digest = capsule(client, tmp_path / "project", **{"eval": "1", "train": "1", **files})
        code = {"digest": digest, "evaluation": evaluation}
        program = {"script": "train.py", "args": {"seed": 0}, "steps": 10}
        return {"kind": "run", "name": "own", "trainer": program, "code": code, **fields}

    base = client.post(RUNS, json={"spec": spec({}, evaluation)}).json()["id"]
    answer = client.post(RUNS, json={"spec": spec(changed, ["other.py"], baseline=base, **CLAIM)})
    if names:
        [problem] = answer.json()["problems"]
        assert problem["message"].endswith(f"otherwise: {names[0]} must be the same.")
    else:
        assert answer.status_code == 201, answer.text


def test_seeds_over_the_budget_are_refused_and_none_is_recorded(client, store):
    body = {"name": "agent", "role": "researcher", "gpu_hours": 3}
    token = client.post("/api/v1/tokens", json=body).json()["token"]
    limited = {**RUN_SPEC, "time_limit_s": 900.0}
    base = client.post(RUNS, json={"spec": limited}).json()["id"]
    client.headers["Authorization"] = f"Bearer {token}"
    run = client.post(RUNS, json={"spec": {**limited, "baseline": base, **CLAIM}}).json()["id"]
    before = store.runs.page().total
    assert "The next 6 take 3.00 GPU-hours by the plan" in judge(client, run)["sentence"]
    assert "over the budget" in judge(client, run, add=True, status=403)["detail"]
    assert store.runs.page().total == before
    assert judge(client, run)["sweeps"] == []


def noises() -> list[np.ndarray]:
    """Losses of ten seeds at each rate of our own trainings: mean 0, deviation 1."""
    groups = defaultdict(list)
    with (ROOT / "tests/data/lr_trainings.csv").open() as file:
        for row in csv.DictReader(file):
            groups[row["family"], row["lr"]].append(float(row["loss"]))
    every = [np.array(group) for group in groups.values() if np.isfinite(group).all()]
    return [(group - group.mean()) / group.std(ddof=1) for group in every if group.std() > 0]


@pytest.fixture
def in_memory():
    """The API of a home without a disk behind it: thousands of runs end in it."""
    with memory_folder() as folder, api_client(folder) as pair:
        yield pair


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("null", "real"), [(8, 2), pytest.param(200, 50, marks=pytest.mark.nightly)]
)
def test_what_is_kept_of_many_claims_is_true(in_memory, null, real):
    """Real gains are twice the noise between seeds, which is that of our own trainings."""
    store, client = in_memory[0].store, in_memory[1]
    rng, kept, baseline = np.random.default_rng(0), [], submit(client, name="base")["id"]
    measured = noises()
    for is_real in rng.permutation([False] * null + [True] * real):
        noise = measured[rng.integers(len(measured))]
        claim = judge(client, claim_of(client, baseline), add=True)
        while claim["verdict"] == "undecided":
            count = len(runs_of(store, claim["sweeps"][-1][0]))
            gains = rng.choice(noise, count) - rng.choice(noise, count) + 2 * is_real
            finish_pairs(store, claim, [float(gain) for gain in gains])
            claim = judge(client, claim["run_id"], add=True)
        if claim["verdict"] == "keep":
            kept.append(bool(is_real))
    assert sum(kept) >= 0.9 * real
    assert kept.count(False) <= ALPHA * len(kept)
