"""What a seed decides before the first event: the cluster, its load, and how often what fails."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

NODE_FAULTS = (
    *("power_off", "hang", "cut_from_server", "cut_from_ray", "cut_off"),
    *("clock_jump", "disk_full", "agent_restart", "shim_kill", "trainer_kill", "bad_gpu"),
)
SERVER_FAULTS = ("server_kill", "server_restart", "bridge_restart", "server_clock_jump")
MACHINE_FAULTS = ("power_cut", "server_disk_full")  # Of the server's machine.
SIZES = ((8,), (8,), (4, 4), (2, 2, 2, 2), (8, 8), (1, 1, 2, 4), (8, 8, 8))
NODES_OF_8 = (1, 1, 1, 1, 1, 2, 2, 2, 4, 4, 8, 8, 16, 32, 64, 125)
"""Nodes of the clusters with long runs: 8 to 1,000 GPUs."""


@dataclass(frozen=True)
class Plan:
    """Times are in virtual seconds, rates per virtual hour."""

    nodes: tuple[int, ...] = (8,)  # GPUs of each node.
    hours: float = 4.0
    """Time with people and faults; then everything is healed and must come to rest."""
    load: float = 0.9  # GPU hours asked for, over those that the cluster has.
    pace: float = 1.0  # Length of the runs, relative to the usual one.
    report_s: float = 15.0  # Time between two reports of an agent.
    ship_s: float = 15.0  # Time between two rounds of a shipper.
    shared_storage: bool = True  # Whether run directories survive the loss of a node's disk.
    loss: float = 0.0  # Share of HTTP requests of which the request or the answer is lost.
    repeats: float = 0.0  # Share of HTTP requests that arrive a second time, later.
    late: float = 0.0
    """Share of HTTP requests that their sender gives up, and that arrive after newer ones."""
    slow: float = 0.0  # Share of calls to agents that take up to two minutes.
    people: float = 6.0  # Requests of people per hour, beside submissions.
    gangs: float = 0.2
    sweeps: float = 0.15
    stubborn: float = 0.1
    failing: float = 0.2
    preemptible: float = 0.0  # Share of the runs that a higher priority may pause.
    verbs: float = 0.0  # Forks, deletions, archives, extensions and rollouts per hour.
    campaigns: float = 0.0  # Campaigns per hour.
    storage: bool = False
    """Whether a node can resume only from checkpoints that it has, or that were copied."""
    copies: float = 0.0  # Share of the runs whose checkpoints are copied to other storage.
    node_ends: float = 0.0  # Ends of nodes that are set or removed per hour.
    faults: dict[str, float] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        return sum(self.nodes)

    @property
    def longest_s(self) -> float:
        """Length of the longest run that nothing disturbs."""
        return 7200.0 * self.pace + 300.0


def draw(rng: random.Random, **given: Any) -> Plan:
    """Draw a plan. ``given`` fields keep their values."""
    quiet = rng.random() < 0.1
    faults = {}
    for name in NODE_FAULTS:
        # Many plans lack a kind of fault: a fault that is always there hides others.
        faults[name] = 0.0 if quiet or rng.random() < 0.4 else 10 ** rng.uniform(-1.5, 0.3)
    for name in SERVER_FAULTS:
        faults[name] = 0.0 if quiet or rng.random() < 0.3 else 10 ** rng.uniform(-1.0, 0.7)
    if rng.random() < 0.7 and "hours" not in given:
        return replace(_sharing(_calm(rng, faults)), **given)
    plan = Plan(
        nodes=rng.choice(SIZES),
        hours=rng.choice([3.0, 6.0, 12.0]),
        load=rng.uniform(0.4, 1.4),
        pace=rng.choice([0.15, 0.5, 1.0, 1.0]),
        report_s=rng.uniform(10.0, 20.0),
        ship_s=rng.uniform(10.0, 20.0),
        shared_storage=rng.random() < 0.5,
        loss=rng.choice([0.0, 0.0, 0.01, 0.1]),
        repeats=rng.choice([0.0, 0.01, 0.1]),
        slow=rng.choice([0.0, 0.0, 0.02, 0.2]),
        people=rng.choice([0.0, 4.0, 12.0]),
        gangs=rng.choice([0.1, 0.3]),
        sweeps=rng.choice([0.0, 0.15, 0.3]),
        stubborn=rng.choice([0.0, 0.1, 0.4]),
        failing=rng.choice([0.0, 0.2, 0.5]),
        faults=faults,
    )
    return replace(_sharing(plan), **given)


def _sharing(plan: Plan) -> Plan:
    """Return the plan with preemptible runs, in one of three.

    Taken from the digits of the load: one more draw would change what each kept seed does.
    """
    return replace(plan, preemptible=(0.0, 0.0, 0.7)[int(plan.load * 1e6) % 3], **_more(plan))


def _more(plan: Plan) -> dict[str, Any]:
    """Draw what was added later, apart from the rest: the rest of each seed's plan stays."""
    rng = random.Random(repr(plan.load))
    rare = 12.0 if plan.pace > 1.0 else 1.0
    quiet = not any(plan.faults.values())
    cuts = 0.0 if quiet or rng.random() < 0.5 else 10 ** rng.uniform(-1.0, 0.5) / rare
    verbs = rng.choice([0.0, 4.0, 12.0]) / rare
    storage = rng.random() < 0.5
    copies = rng.choice([0.0, 0.5, 1.0]) if storage else 0.0
    node_ends = rng.choice([0.0, 0.0, 1.0]) / rare
    full = 0.0 if quiet or rng.random() < 0.5 else 10 ** rng.uniform(-1.0, 0.5) / rare
    campaigns = rng.choice([0.0, 0.0, 2.0]) / rare
    return {
        "verbs": verbs,
        "campaigns": campaigns,
        "storage": storage,
        "copies": copies,
        "node_ends": node_ends,
        "faults": {**plan.faults, "power_cut": cuts, "server_disk_full": full},
    }


def _calm(rng: random.Random, faults: dict[str, float]) -> Plan:
    """Draw a plan as most clusters are: runs of many hours, and days between faults."""
    nodes = rng.choice(NODES_OF_8)
    return Plan(
        nodes=(8,) * nodes,
        hours=rng.choice([100.0, 200.0, 300.0]) if nodes <= 16 else rng.choice([24.0, 48.0]),
        load=rng.uniform(0.4, 1.0),
        pace=rng.choice([4.0, 8.0, 12.0]),
        report_s=rng.uniform(20.0, 40.0),
        ship_s=rng.uniform(20.0, 40.0),
        shared_storage=rng.random() < 0.5,
        loss=rng.choice([0.0, 0.01]),
        repeats=rng.choice([0.0, 0.01]),
        slow=rng.choice([0.0, 0.02]),
        people=rng.choice([0.0, 0.5, 2.0]),
        gangs=rng.choice([0.1, 0.3]),
        sweeps=rng.choice([0.0, 0.15, 0.3]),
        stubborn=rng.choice([0.0, 0.1]),
        failing=rng.choice([0.0, 0.1, 0.3]),
        # Faults of nodes come as often in an hour on a large cluster as on a small one.
        faults={
            name: rate / (20.0 * (1 + nodes / 8) if name in NODE_FAULTS else 20.0)
            for name, rate in faults.items()
        },
    )
