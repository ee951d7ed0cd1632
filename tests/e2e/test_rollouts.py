"""Rollouts on the real platform: a sound run passes four stages, seeded bugs fail."""

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


def rolled(server, corpus, names):
    """Rollouts that ran side by side, each until it ended."""
    client = server.client()
    launched = {name: client.rollout(rollout(corpus, name)) for name in names}
    return {name: one.wait(timeout_s=700) for name, one in launched.items()}


@pytest.fixture(scope="module")
def more(platform, corpus):
    return rolled(platform, corpus, ["sound", "hot", "sums"])


NO_PAIR = {"exact_resume": {"enabled": False}}
ROLLOUTS = {
    "sound": {},
    "hot": {"lr": 1e3},
    "forgets": {"env": {"SEEDED_BUG": "forgets"}},
    "sums": {
        "env": {"SEEDED_BUG": "sums"},
        "stages": {
            "cpu": {"steps": 8, "gates": NO_PAIR},
            "one_gpu": {"steps": 8, "gates": {**CALM, **NO_PAIR}},
        },
    },
}


def rollout(corpus: Path, name: str) -> dict[str, object]:
    more = ROLLOUTS[name]
    train = specs.train(
        corpus,
        steps=30,
        optimizer={"lr": more.get("lr", 1e-2)},
        checkpoint={"every": 10},
        validation={"tokens": 512, "share": 0.1, "every": 0},
    )
    return {
        "kind": "rollout",
        "name": name,
        "run": {"resources": {"gpus": 4}, "train": train, "env": more.get("env", {})},
        "stages": {
            "cpu": {"steps": 24},
            "one_gpu": {"steps": 12, "gates": CALM},
            "two_gpus": {"steps": 12, "gates": CALM},
            "all": {"judge_after": 20, "gates": CALM},
            **more.get("stages", {}),
        },
    }


def evidence(found):
    return [(s.name, g.name, g.state, g.expected, g.seen) for s in found.stages for g in s.gates]


def test_run_that_loses_optimizer_state_fails_on_the_cpu(platform, corpus):
    [found] = rolled(platform, corpus, ["forgets"]).values()
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
    assert found.reason is not None
    assert found.reason.removeprefix(f"stage {stage}, ").partition(":")[0] in {
        g.title for g in found.gates(stage)
    }
