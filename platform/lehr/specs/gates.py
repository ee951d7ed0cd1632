"""The gates of a rollout's stages: conditions before more is spent, and their limits."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from lehr_trainer.configs.base import Config, Fraction

AlertCode = Literal[
    "nan", "too_good", "diverging", "spikes", "oscillating", "stagnant", "low_lr", "high_lr",
    "exploding", "exploding_part", "dead_part", "overfitting", "memorization", "implausible",
    "data_wait", "slowdown", "straggler", "memory_creep", "repeated_batches", "other_data",
    "lost_records",
]  # fmt: skip
"""Names of the alerts; ``lehr.analysis.diagnosis`` has a rule for each."""


class Switched(Config):
    enabled: bool = True
    """false: the gate is not judged, and the next stage does not wait for it."""


class FirstLoss(Switched):
    """The first loss matches untrained weights: about ln(vocabulary)."""

    within: Annotated[float, Field(gt=0)] = 0.5
    """Allowed difference from the loss that the initialization predicts, in nats."""


class FallingLoss(Switched):
    """The loss falls during the stage."""

    by: Annotated[float, Field(gt=0, lt=1)] = 0.03
    """The median loss of the last steps must be lower than the first loss by this share of it."""


class NoAlerts(Switched):
    """The diagnosis of the run's curves reports no alert."""

    ignore: list[AlertCode] = []
    """Alerts to ignore."""


class CpuNoAlerts(NoAlerts):
    ignore: list[AlertCode] = ["data_wait", "slowdown", "straggler"]
    """Alerts to ignore. Steps of milliseconds always wait for data, because Python is slower, and
    other programs share the CPU."""


class ExactResume(Switched):
    """A run resumed from its middle checkpoint ends with bitwise the same weights.

    Compares the SHA-256 of every weight and optimizer file in the last checkpoints of two runs.
    Both train with ``train.deterministic``. A stage that is deterministic anyway is the first of
    the two.
    """

    steps: Annotated[int, Field(ge=2)] = 20
    """Steps of the run that is repeated from its middle, unless the stage itself is that run."""


class Memory(Switched):
    """Peak GPU memory is as planned, and leaves room on the card.

    On a CPU only ``at_most_gb`` is judged, by the memory of the process.
    """

    of_card: Annotated[float, Field(gt=0, le=1)] = 0.95
    """Allowed share of the card's memory."""
    over_plan: Annotated[float, Field(ge=0)] = 0.25
    """Allowed excess over the planned memory, as a share of it."""
    at_most_gb: Annotated[float, Field(gt=0)] | None = None
    """Allowed memory in GB, whatever the card and the plan."""


class Mfu(Switched):
    """MFU (model FLOPs utilization, as a share of the GPUs' dense peak) is above a minimum.

    Not judged where the peak is unknown, as on a CPU.
    """

    at_least: Fraction = 0.2
    """Minimum of the median over the second half of the stage. The default is half of what a
    plan assumes.
    """


class LastGates(Config):
    """The gates of the real run. It is judged while it runs, so it is not run twice."""

    first_loss: FirstLoss = FirstLoss()
    falling_loss: FallingLoss = FallingLoss()
    no_alerts: NoAlerts = NoAlerts()
    memory: Memory = Memory()
    mfu: Mfu = Mfu()


class Gates(LastGates):
    """The gates of a stage: the next stage starts only after all have passed."""

    exact_resume: ExactResume = ExactResume()


class CpuGates(Gates):
    """The gates of the CPU stage. Waiting for data is no alert there."""

    no_alerts: CpuNoAlerts = CpuNoAlerts()


Gate = FirstLoss | FallingLoss | NoAlerts | Memory | Mfu | ExactResume
GateName = Literal["first_loss", "falling_loss", "no_alerts", "memory", "mfu", "exact_resume"]
GATES: tuple[GateName, ...] = get_args(GateName)
"""In display order. ``exact_resume`` is judged last, because it needs more runs."""


def gates_of(gates: LastGates) -> dict[GateName, Gate]:
    """Return the gates by name, in order, including those that are switched off."""
    return {name: getattr(gates, name) for name in GATES if name in type(gates).model_fields}
