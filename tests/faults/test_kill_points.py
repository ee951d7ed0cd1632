"""Every process of the control plane is killed at every named point of a run's life.

Before and after each commit, each call through Ray and each acknowledgement: the server is
started again, the run comes to the end that it should, and the history breaks no rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from lehr.faces.client.rollouts import Rollout
from lehr_testing.faults.fault_server import FaultServer
from lehr_testing.faults.kill_points import POINTS, QUICK
from lehr_testing.waiting import until

SLOW_STEPS = 250
"""What is to be stopped must not end by itself while a server is started again."""


def run(server: FaultServer, name: str) -> None:
    spec = server.spec(name, steps=30, step_s=0.06, CHECKPOINT_EVERY=10)
    submitted = server.submit(spec)
    assert server.ends(submitted) == ["completed"]


def requeue(server: FaultServer, name: str) -> None:
    spec = server.spec(name, steps=8, FAIL_AT=6, FAIL_TIMES=1, retries={"user": 1})
    submitted = server.submit(spec)
    assert server.ends(submitted) == ["completed"]


def fail(server: FaultServer, name: str) -> None:
    submitted = server.submit(server.spec(name, steps=8, FAIL_AT=6))
    assert server.ends(submitted) == ["failed"]


def cancel(server: FaultServer, name: str) -> None:
    submitted = server.submit(server.spec(name, steps=100_000))
    server.reaches(submitted, "running")
    server.verb(submitted, "cancel")
    assert server.ends(submitted) == ["cancelled"]


def ignored_cancel(server: FaultServer, name: str) -> None:
    submitted = server.submit(server.spec(name, steps=100_000, DEAF=1))
    server.reaches(submitted, "running")
    server.verb(submitted, "cancel")
    assert server.ends(submitted) == ["cancelled"]


def pause(server: FaultServer, name: str) -> None:
    submitted = server.submit(server.spec(name, steps=SLOW_STEPS, step_s=0.12))
    server.reaches(submitted, "running")
    server.verb(submitted, "pause")
    server.reaches(submitted, "paused")
    server.verb(submitted, "resume")
    assert server.ends(submitted) == ["completed"]


def prune(server: FaultServer, name: str) -> None:
    rates = [1e-3, 2e-3, 1e-6, 1e-7]
    sweep = server.sweep(_trials(server, name, rates, steps=SLOW_STEPS, max_concurrent=2))
    trials = [trial.run for trial in sweep.trials]
    runs = [server.with_retries(lambda client, i=trial.id: client.run(i)) for trial in trials]
    assert server.ends(*runs) == ["completed", "completed", "pruned", "pruned"]
    assert len(server.with_retries(lambda client: client.find_sweep(sweep.id)).trials) == len(rates)


def tpe(server: FaultServer, name: str) -> None:
    spec = _sweep(server, name, steps=3) | {
        "method": "tpe",
        "trials": 12,
        "parameters": {
            "train.optimizer.lr": {"min": 1e-5, "max": 1e-2, "distribution": "log_uniform_values"}
        },
    }
    sweep = server.sweep(spec)

    def trials() -> list:
        return server.with_retries(lambda client: client.find_sweep(sweep.id)).trials

    until(
        lambda: len(trials()) == 12 and all(c.run.state == "completed" for c in trials()),
        within_s=180,
        what="twelve trials that completed",
        every_s=0.5,
    )
    assert len({c.parameters["train.optimizer.lr"] for c in trials()}) == 12


def trunk(server: FaultServer, name: str) -> None:
    spec = _sweep(server, name, steps=8)
    spec["run"]["env"]["FAKE_CHECKPOINT_EVERY"] = "4"
    train = spec["run"]["train"]
    del train["steps"]
    tokens = 4 * train["batch"]["sequences"] * train["batch"]["sequence_length"]
    train["stages"] = [{"tokens": tokens}, {"tokens": tokens}]
    sweep = server.sweep(
        spec | {"parameters": {"train.stages.1.optimizer.lr": {"values": [1e-3, 2e-3]}}}
    )
    runs = [
        server.with_retries(lambda client, i=trial.run.id: client.run(i)) for trial in sweep.trials
    ]
    ends = server.ends(*runs)
    assert ends == ["completed", "completed"], [run.refresh().view.reason for run in runs]
    [shared] = {run.view.forked_from for run in runs}
    assert server.with_retries(lambda client: client.run(shared)).state == "completed"
    assert {run.refresh().view.attempt for run in runs} == {1}


def stop(server: FaultServer, name: str) -> None:
    spec = _trials(server, name, [1e-3, 2e-3, 3e-3, 4e-3, 5e-3], steps=8, max_concurrent=1)
    spec["run"]["env"]["FAKE_FAIL_AT"] = "2"
    sweep = server.sweep(spec)
    runs = [
        server.with_retries(lambda client, i=trial.run.id: client.run(i)) for trial in sweep.trials
    ]
    ends = server.ends(*runs)
    assert ends[:3] == ["failed"] * 3
    assert ends[4] == "cancelled"


def rollout(server: FaultServer, name: str) -> None:
    ended = _rolled(server, server.spec(name, steps=8))
    assert ended.state == "passed", ended.reason
    assert [len(stage.runs) for stage in ended.stages] == [1, 1]


def failed_rollout(server: FaultServer, name: str) -> None:
    ended = _rolled(server, server.spec(name, steps=8, FAIL_AT=6))
    assert ended.state == "failed"
    assert [len(stage.runs) for stage in ended.stages] == [1, 0]


def _rolled(server: FaultServer, run: dict) -> Rollout:
    """Return the ended rollout of that run. Its gates need no real model."""
    name = run["name"]
    run["train"]["checkpoint"] = {"every": 4}
    no_loss, no_weights = ({gate: {"enabled": False}} for gate in ("first_loss", "exact_resume"))
    stages = {
        "cpu": {"enabled": False},
        "one_gpu": {"steps": 8, "gates": no_loss | no_weights},
        "all": {"gates": no_loss},
    }
    spec = {"kind": "rollout", "name": name, "run": run, "stages": stages}
    launched = server.with_retries(lambda client: client.rollout(spec, idempotency_key=name))

    def found() -> Rollout:
        return server.with_retries(lambda client: client.find_rollout(launched.id))

    return until(
        lambda: one if (one := found()).ended else None,
        within_s=180,
        what=f"{name} to end",
        every_s=0.5,
    )


def _sweep(server: FaultServer, name: str, *, steps: int) -> dict:
    return {
        "kind": "sweep",
        "name": name,
        "metric": {"name": "train/loss", "goal": "minimize"},
        "run": server.spec(name, steps=steps, step_s=0.1),
    }


def _trials(
    server: FaultServer, name: str, rates: list[float], *, steps: int, max_concurrent: int
) -> dict:
    return _sweep(server, name, steps=steps) | {
        "method": "list",
        "points": [{"train.optimizer.lr": rate} for rate in rates],
        "max_concurrent": max_concurrent,
        "pruning": {"name": "median", "startup_trials": 2, "min_steps": 5},
    }


COURSES: dict[str, Callable[[FaultServer, str], None]] = {
    "run": run,
    "requeue": requeue,
    "fail": fail,
    "cancel": cancel,
    "ignored_cancel": ignored_cancel,
    "pause": pause,
    "prune": prune,
    "tpe": tpe,
    "trunk": trunk,
    "stop": stop,
    "rollout": rollout,
    "failed_rollout": failed_rollout,
}


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
_names = itertools.count(1)


@pytest.fixture
def server(server: FaultServer) -> FaultServer:
    """Yield the server, judged from here on."""
    server.begin()
    return server


def parameters():
    """The slow scenarios, which are the majority, in two groups with a server each."""
    for number, (scenario, point) in enumerate(POINTS):
        slow = (scenario, point) not in QUICK
        group = f"kill-points-{number % 2}" if slow else "platform"
        marks = [pytest.mark.xdist_group(group), *([pytest.mark.faults] if slow else [])]
        yield pytest.param(scenario, point, marks=marks, id=f"{scenario} - {point}")


@pytest.mark.parametrize(("scenario", "point"), list(parameters()))
def test_a_kill_at_this_point_leaves_the_run_ended_correctly(
    server: FaultServer, scenario: str, point: str
):
    server.revive()
    server.cluster_ready()
    server.arm(point)
    try:
        COURSES[scenario](server, f"{scenario}-{next(_names)}")
        # What comes after the end that people see is reached a moment later.
        until(lambda: server.fired, within_s=30, what=f"somebody to reach {point!r}")
    finally:
        server.disarm()
    server.revive()
    server.verdict()


@pytest.mark.xdist_group("platform")
def test_scenarios_end_as_expected_without_a_kill(server: FaultServer):
    """Without this the tests above would prove nothing."""
    server.disarm()
    before = server.restarts
    for scenario in ("run", "requeue"):
        COURSES[scenario](server, f"{scenario}-undisturbed")
    server.verdict()
    assert server.restarts == before
