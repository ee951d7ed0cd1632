"""The gates of a rollout's stages: what must hold before more is spent, and how strictly."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lehr_trainer.configs.train import Config, Fraction

AlertCode = Literal[
    "nan",
    "too_good",
    "diverging",
    "spikes",
    "stagnant",
    "exploding",
    "overfitting",
    "data_wait",
]
"""What the diagnosis calls what it sees (``lehr.analysis.diagnosis``)."""


class Switched(Config):
    enabled: bool = True
    """false: it is not judged, and nothing waits for it."""


class FirstLoss(Switched):
    """The first step's loss is what untrained weights must give: about ln(vocabulary)."""

    within: Annotated[float, Field(gt=0)] = 0.5
    """Nats by which it may be off what the initialisation predicts."""


class FallingLoss(Switched):
    """The loss falls while the stage trains."""

    by: Annotated[float, Field(gt=0, lt=1)] = 0.03
    """Share of the first loss by which the last steps' median must lie below it."""


class NoAlerts(Switched):
    """The diagnosis of the run's curves finds nothing wrong."""

    ignore: list[AlertCode] = []
    """Alerts that do not count."""


class CpuNoAlerts(NoAlerts):
    ignore: list[AlertCode] = ["data_wait"]
    """Alerts that do not count: steps of milliseconds wait for data as they wait for Python."""


class ExactResume(Switched):
    """A run that goes on from its middle checkpoint ends bit for bit where the whole run did.

    Two runs are compared by the SHA-256 of every weight and optimizer file in their last
    checkpoints. They train with ``train.deterministic``; a stage that trains so anyway is itself
    the first of the two.
    """

    steps: Annotated[int, Field(ge=2)] = 20
    """Of the run that is repeated from its middle, unless the stage itself is that run."""


class Memory(Switched):
    """The most that one GPU held is what was planned, and leaves room on the card.

    On a CPU only ``at_most_gb`` can be judged, by the process's memory.
    """

    of_card: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Share of the card's memory that may be held."""
    over_plan: Annotated[float, Field(ge=0)] = 0.25
    """Share of the planned memory by which it may be exceeded."""
    at_most_gb: Annotated[float, Field(gt=0)] | None = None
    """GB that may be held, whatever the card and the plan say."""


class Mfu(Switched):
    """Model FLOPs utilization, the share of the GPUs' dense peak, is not under a floor.

    Not judged where no peak is known, as on a CPU.
    """

    at_least: Fraction = 0.2
    """The median over the second half of the stage; half of what a plan counts on."""


class Gates(Config):
    """What a stage must show before the next one starts."""

    first_loss: FirstLoss = FirstLoss()
    falling_loss: FallingLoss = FallingLoss()
    no_alerts: NoAlerts = NoAlerts()
    memory: Memory = Memory()
    mfu: Mfu = Mfu()
    exact_resume: ExactResume = ExactResume()


class CpuGates(Gates):
    """Those of the other stages; but waiting for data is no alert here."""

    no_alerts: CpuNoAlerts = CpuNoAlerts()


class LastGates(Config):
    """Those of the real run. It is judged while it goes on, so it is not run twice."""

    first_loss: FirstLoss = FirstLoss()
    falling_loss: FallingLoss = FallingLoss()
    no_alerts: NoAlerts = NoAlerts()
    memory: Memory = Memory()
    mfu: Mfu = Mfu()


Gate = FirstLoss | FallingLoss | NoAlerts | Memory | Mfu | ExactResume
GateName = Literal["first_loss", "falling_loss", "no_alerts", "memory", "mfu", "exact_resume"]
GATES: tuple[GateName, ...] = (
    "first_loss",
    "falling_loss",
    "no_alerts",
    "memory",
    "mfu",
    "exact_resume",
)
"""In the order in which they are shown. ``exact_resume`` is judged last: it costs further runs."""


def gates_of(gates: Gates | LastGates) -> dict[GateName, Gate]:
    """By name, in their order, those that are switched off included."""
    return {name: getattr(gates, name) for name in GATES if name in type(gates).model_fields}
