"""A rollout on the real platform: a seeded bug ends it in its first stage."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr_testing import specs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]

CALM = {"no_alerts": {"ignore": ["data_wait"]}}
"""Ranks that share two cores wait for each other."""


def forgetful(corpus: Path) -> dict[str, object]:
    train = specs.train(
        corpus,
        steps=30,
        optimizer={"lr": 1e-2},
        checkpoint={"every": 10},
        validation={"tokens": 512, "share": 0.1, "every": 0},
    )
    return {
        "kind": "rollout",
        "name": "forgets",
        "run": {"resources": {"gpus": 4}, "train": train, "env": {"SEEDED_BUG": "forgets"}},
        "stages": {
            "cpu": {"steps": 24},
            "one_gpu": {"steps": 12, "gates": CALM},
            "two_gpus": {"steps": 12, "gates": CALM},
            "all": {"judge_after": 20, "gates": CALM},
        },
    }


def evidence(found):
    return [(s.name, g.name, g.state, g.expected, g.seen) for s in found.stages for g in s.gates]


def test_run_that_loses_optimizer_state_fails_on_the_cpu(server, corpus):
    found = server.client().rollout(forgetful(corpus)).wait(timeout_s=700)
    stopped(found, "cpu", {"exact_resume"}, ["forgets-cpu", "forgets-cpu-resumed"])


def stopped(found, stage, gates, runs):
    """Assert that the rollout failed at that stage, by some of those gates and no other."""
    assert (found.state, found.view.stage) == ("failed", stage), evidence(found)
    failed = {(s.name, g.name) for s in found.stages for g in s.gates if g.state == "failed"}
    assert failed
    assert failed <= {(stage, gate) for gate in gates}
    # Nothing of the stages after it was started: no GPU was held for them.
    assert [run.name for run in found.runs()] == runs
    states = list(found.view.progress.values())
    after = states[states.index("failed") + 1 :]
    assert set(after) == {"skipped"}
    assert found.reason.removeprefix(f"stage {stage}, ").partition(":")[0] in {
        g.title for g in found.gates(stage)
    }
