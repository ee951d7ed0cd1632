"""What a gate of a rollout is judged by, what it expects, and its judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import Alert
from lehr.specs.gates import GateName

GateResult = Literal["passed", "failed", "not_judged"]


@dataclass(frozen=True)
class Pair:
    """The last checkpoints of a whole run and of one resumed from its middle."""

    resumed_id: str
    step: int
    whole: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 by file name, of weights and optimizer."""
    resumed: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    """Why they cannot be compared: a run failed, or a manifest cannot be read."""
    failed: bool = False
    """Whether that problem is the resumed run's own failure."""


@dataclass(frozen=True)
class Evidence:
    """What a stage's runs have shown so far."""

    run_id: str
    """State of ``train``."""
    curves: Mapping[str, Curve]
    """By metric, up to the step at which the stage is judged."""
    alerts: Sequence[Alert] = ()
    device: str | None = None
    """E.g. "cpu (logical GPU)" or "NVIDIA H100 80GB HBM3"."""
    complete: bool = False
    """The run has ended or reached the step at which it is judged: no further evidence counts."""
    cause: str | None = None
    """Why it failed, for programs: out_of_memory, nan_loss, ..."""
    pair: Pair | None = None
    """Set once both of its runs have ended."""


@dataclass(frozen=True)
class Expected:
    """What is known before the stage has run."""

    text: str
    at_least: float | None = None
    at_most: float | None = None
    unit: str | None = None


@dataclass(frozen=True)
class Judgement:
    gate: GateName
    verdict: GateResult
    expected: Expected
    seen: str
    value: float | None = None
    run_id: str | None = None
    step: int | None = None
