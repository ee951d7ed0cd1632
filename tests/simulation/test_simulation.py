"""The simulation finds nothing in the product, and finds every bug that is planted."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lehr_testing.paths import ROOT
from simulation.mutations import MUTATIONS, plan
from simulation.watch import INVARIANTS
from simulation.world import Result, simulate

QUICK = ("the rest of a broken gang goes on",)
"""The planted bug that is looked for at every change."""
SHORT = {"hours": 1.0, "pace": 0.3}


def kept_seeds() -> list[tuple[int, float]]:
    lines = Path(__file__).with_name("seeds.txt").read_text().splitlines()
    found = [line.split(maxsplit=2) for line in lines if line and not line.startswith("#")]
    return [(int(seed), float(hours)) for seed, hours, _ in found]


def explain(result: Result) -> str:
    found = [f"{one.invariant}: {one.text}\n{one.trace}" for one in result.violations]
    return "\n".join([result.line(), *found, *result.tail[-40:]])


@pytest.mark.parametrize(
    "seed", [*(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2)), 3]
)
def test_short_seed_breaks_no_invariant(seed: int) -> None:
    result = simulate(seed, nodes=(4, 4), **SHORT)
    assert not result.violations, explain(result)
    assert result.counts["attempts"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(500, 520))
def test_drawn_seed_breaks_no_invariant(seed: int) -> None:
    result = simulate(seed, hours=3.0)
    assert not result.violations, explain(result)


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "hours"), kept_seeds())
def test_seed_that_showed_a_bug_shows_none(seed: int, hours: float) -> None:
    result = simulate(seed, hours=hours)
    assert not result.violations, explain(result)


@pytest.mark.nightly  # A property of the simulation itself, which is run with many seeds at night.
def test_the_same_seed_gives_the_same_history() -> None:
    """In other processes too, whose sets have another order."""

    def digest(hash_seed: str) -> str:
        program = (
            "from simulation.mutations import plan\n"
            "from simulation.world import simulate\n"
            "faults = plan('power_off', 'hang', 'server_kill', 'power_cut', rate=6.0, verbs=20.0)\n"
            "print(simulate(5, **{**faults, 'hours': 0.2, 'loss': 0.1, 'repeats': 0.1}).digest)"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTHONHASHSEED": hash_seed}
        return subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    assert digest("1") == digest("2") != ""


@pytest.mark.nightly  # tests/platform/control has the decisions; the server is killed in the test below.
def test_preempted_runs_break_no_invariant_although_servers_are_killed() -> None:
    busy = {"preemptible": 1.0, "load": 1.6, "nodes": (4, 2), "hours": 0.6}
    result = simulate(1, **(plan("server_kill", rate=10.0) | busy))
    assert not result.violations, explain(result)
    assert result.counts["stopped: preempted"] >= 1


@pytest.mark.nightly  # tests/platform/control has the decisions; the server is killed in the test below.
def test_ends_of_nodes_break_no_invariant_although_servers_are_killed() -> None:
    busy = {"node_ends": 12.0, "nodes": (4, 2), "hours": 1.0, "people": 10.0}
    result = simulate(1, **(plan("server_kill", "power_off", rate=4.0) | busy))
    assert not result.violations, explain(result)
    assert result.counts["stopped: node_until"] >= 1


@pytest.mark.nightly  # tests/platform/control has the rule; half a minute of a core.
def test_campaigns_keep_to_their_budgets_although_servers_are_killed() -> None:
    faults = ("trainer_kill", "server_kill", "power_off")
    busy = {"campaigns": 6.0, "failing": 0.2, "people": 6.0, "hours": 0.7}
    result = simulate(3, **plan(*faults, rate=4.0, **busy))
    assert not result.violations, explain(result)
    assert result.counts["campaigns"] >= 3
    assert result.counts["pruned in campaigns"] >= 5


def test_server_stops_though_the_disk_refuses_its_last_heartbeats() -> None:
    busy = {"sweeps": 0.5, "failing": 0.3, "people": 10.0, "hours": 0.3}
    result = simulate(1, **plan("server_disk_full", "server_restart", rate=200.0, **busy))
    assert not result.violations, explain(result)


def test_requests_that_arrive_after_newer_ones_break_no_invariant():
    busy = {"late": 0.2, "failing": 0.3, "people": 10.0, "hours": 0.4}
    result = simulate(2, **plan("trainer_kill", rate=6.0, **busy))
    assert not result.violations, explain(result)
    assert result.counts["late requests"] >= 10


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 3])
def test_clock_of_the_server_is_set_while_nodes_end(seed) -> None:
    busy = {"node_ends": 10.0, "nodes": (4, 2), "hours": 2.0, "people": 10.0}
    result = simulate(seed, **(plan("server_clock_jump", rate=20.0) | busy))
    assert not result.violations, explain(result)


def test_server_is_killed_between_writes_and_started_again() -> None:
    result = simulate(1, **(plan("server_kill", rate=30.0) | {"hours": 0.5}))
    assert not result.violations, explain(result)
    assert result.counts["kills"] >= 3


@pytest.mark.nightly
def test_power_cuts_and_every_verb_break_no_invariant() -> None:
    faults = ("power_cut", "server_kill", "power_off", "cut_off", "trainer_kill")
    busy = {"people": 10.0, "sweeps": 0.2, "failing": 0.3, "loss": 0.02, "repeats": 0.02}
    counts: Counter[str] = Counter()
    for seed in range(1, 5):
        result = simulate(seed, **plan(*faults, verbs=30.0, nodes=(4, 4), **busy))
        assert not result.violations, explain(result)
        counts.update(result.counts)
    # One history alone may lack a verb.
    for what in ("forks", "deletions", "extensions", "rollouts", "power cuts"):
        assert counts[what] > 0, f"{what}: none"


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1, 4))
def test_checkpoints_on_disks_and_in_storage_break_no_invariant(seed: int) -> None:
    """Seed 1 of these showed that a deleted run got a copy of its last checkpoint again."""
    files = {"storage": True, "copies": 1.0, "shared_storage": False}
    faults = () if seed == 1 else ("power_off", "trainer_kill", "cut_off")
    result = simulate(seed, **plan(*faults, verbs=60.0, load=1.5, hours=3.0, **files))
    assert not result.violations, explain(result)
    assert result.counts["copies"] > 0


def test_every_invariant_has_a_planted_bug() -> None:
    assert {mutation.invariants[0] for mutation in MUTATIONS.values()} == set(INVARIANTS)


def test_wrong_transition_is_found_after_the_call_that_makes_it() -> None:
    mutation = MUTATIONS["every budget covers another try"]
    result = simulate(2, mutation=mutation.bug, **mutation.given)
    assert [one.invariant for one in result.violations] == ["budget"], explain(result)
    assert result.hours < result.plan.hours  # Not only when everything has come to rest.


# The copy that a fork waits for needs many seeds: three minutes of a core.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly)
        for name in MUTATIONS
    ],
)
def test_planted_bug_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    for seed in range(1, mutation.seeds + 1):
        result = simulate(seed, mutation=mutation.bug, **mutation.given)
        if result.violations:
            assert result.violations[0].invariant in mutation.invariants, explain(result)
            return
    pytest.fail(f"{name}: not found within {mutation.seeds} seeds")
