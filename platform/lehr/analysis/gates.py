"""Judge the gates of a rollout's stage: what was expected, what was seen.

Pure: from recorded curves, digests and the stage's plan. A certain failure is reported as soon as
it is seen. A pass is reported once no further evidence can come.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import Alert
from lehr.analysis.replaced_parts import changes_memory, not_ours, replaced_model
from lehr.specs.gates import ExactResume, FallingLoss, FirstLoss, GateName, Memory, Mfu, NoAlerts
from lehr.specs.stages import PlannedStage
from lehr_trainer.planning.counts import predicted_first_loss
from lehr_trainer.planning.hardware import find_gpu
from lehr_trainer.planning.memory import training_memory

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
    failed: bool = False  # Whether that problem is the resumed run's own failure.


@dataclass(frozen=True)
class Evidence:
    """What a stage's runs have shown so far."""

    run_id: str  # State of ``train``.
    curves: Mapping[str, Curve]  # By metric, up to the step at which the stage is judged.
    alerts: Sequence[Alert] = ()
    device: str | None = None
    """E.g. "cpu (logical GPU)" or "NVIDIA H100 80GB HBM3"."""
    complete: bool = False
    """The run has ended or reached the step at which it is judged: no further evidence counts."""
    cause: str | None = None  # Why it failed, for programs: out_of_memory, nan_loss, ...
    pair: Pair | None = None  # Set once both of its runs have ended.

    def curve(self, name: str) -> Curve:
        """Return the curve of a metric; empty if it was not logged."""
        return self.curves.get(name, Curve((), ()))


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
    seen: str
    value: float | None = None
    step: int | None = None
    _: KW_ONLY
    expected: Expected
    run_id: str | None = None


_Say = Callable[..., Judgement]
"""Makes the judgement of a gate from a verdict, what was seen, its value and its step."""

GB = 1e9
_LAST_SHARE = 10
"""The loss at the end is the median of the last tenth of the steps, at least three."""
_NO_LOSS = "no loss was logged"
_LEAST_POINTS = 6  # With fewer steps, a fall is not significant.

TITLES: dict[GateName, str] = {
    "first_loss": "first loss",
    "falling_loss": "falling loss",
    "no_alerts": "no alert",
    "memory": "memory",
    "mfu": "MFU",
    "exact_resume": "bit-exact resume",
}


def expected(name: GateName, stage: PlannedStage) -> Expected:
    """Return what the gate expects of the stage, in words and figures."""
    expect, _ = _RULES[name]
    return expect(stage.gates[name], stage)


def judge(name: GateName, stage: PlannedStage, evidence: Evidence) -> Judgement | None:
    """Judge a gate. Return None while it is too early, or when the gate is switched off."""
    gate = stage.gates[name]
    if not gate.enabled:
        return None
    expectation = expected(name, stage)
    if isinstance(gate, Memory):
        expectation = _expect_memory(gate, stage, evidence.device)
    say = partial(Judgement, name, expected=expectation, run_id=evidence.run_id)
    _, judge_by = _RULES[name]
    return judge_by(gate, evidence, expectation, say)


# --- first loss ----------------------------------------------------------------------------


def _expect_first_loss(gate: FirstLoss, stage: PlannedStage) -> Expected:
    train = stage.train.own
    model = train.model
    if train.parts is not None and (train.parts.model or train.parts.loss):
        return Expected(f"unknown: {not_ours(train)}", unit="nats")
    value = predicted_first_loss(model)
    beyond = value - math.log(model.vocab_size)
    text = (
        f"{value:.2f} ± {gate.within:g} nats: ln({model.vocab_size:,}) and {beyond:.2f} for the "
        "spread of the first logits"
    )
    return Expected(text, value - gate.within, value + gate.within, "nats")


def _judge_first_loss(
    _gate: FirstLoss, evidence: Evidence, expectation: Expected, say: _Say
) -> Judgement | None:
    curve = evidence.curve("train/loss")
    if not len(curve):
        return say("failed", _NO_LOSS) if evidence.complete else None
    step, value = curve.steps[0], curve.values[0]
    if step > 1:
        seen = f"its first loss is logged at step {step:,} (diagnostics.log_every)"
        return say("not_judged", seen)
    verdict: GateResult = "not_judged"
    if expectation.at_least is not None and expectation.at_most is not None:
        verdict = _verdict(expectation.at_least <= value <= expectation.at_most)
    return say(verdict, f"{value:.2f} nats at step 1", value, step)


# --- falling loss --------------------------------------------------------------------------


def _expect_falling_loss(gate: FallingLoss, stage: PlannedStage) -> Expected:
    text = f"at least {gate.by * 100:g} % under the first loss by step {stage.judge_after:,}"
    return Expected(text, unit="nats")


def _judge_falling_loss(
    gate: FallingLoss, evidence: Evidence, expectation: Expected, say: _Say
) -> Judgement | None:
    curve = evidence.curve("train/loss")
    if not len(curve):
        return say("failed", _NO_LOSS) if evidence.complete else None
    for step, value in _points(curve):
        if not math.isfinite(value):
            return say("failed", f"the loss became {value} at step {step:,}", None, step)
    if not evidence.complete:
        return None
    if len(curve) < _LEAST_POINTS:
        seen = f"only {len(curve)} of its steps were logged; {_LEAST_POINTS} are needed"
        return say("not_judged", seen)
    first = curve.values[0]
    last = statistics.median(curve.values[-max(3, len(curve) // _LAST_SHARE) :])
    limit = first * (1 - gate.by)
    way = "under" if last <= first else "over"
    seen = (
        f"{last:.3f} nats by step {curve.steps[-1]:,}, {abs(1 - last / first) * 100:.1f} % {way} "
        f"the first {first:.3f}"
    )
    judgement = say(_verdict(last <= limit), seen, last, curve.steps[-1])
    return replace(judgement, expected=replace(expectation, at_most=limit))


# --- no alert ------------------------------------------------------------------------------


def _expect_no_alerts(gate: NoAlerts, stage: PlannedStage) -> Expected:  # noqa: ARG001 - one of a table
    ignored = f" (except {', '.join(gate.ignore)})" if gate.ignore else ""
    return Expected(f"the diagnosis of its curves finds nothing wrong{ignored}")


def _judge_no_alerts(
    gate: NoAlerts, evidence: Evidence, _expectation: Expected, say: _Say
) -> Judgement | None:
    for alert in evidence.alerts:
        # Curves often show a sign that disappears again. So, except for NaN, alerts count only at
        # the end.
        if alert.code not in gate.ignore and (evidence.complete or alert.code == "nan"):
            return say("failed", alert.message, None, alert.step)
    if not evidence.complete:
        return None
    curve = evidence.curve("train/loss")
    if not len(curve):
        return say("failed", _NO_LOSS)
    return say("passed", f"none in {len(curve):,} logged steps", None, curve.steps[-1])


# --- memory --------------------------------------------------------------------------------


def _expect_memory(gate: Memory, stage: PlannedStage, device: str | None = None) -> Expected:
    train, resources = stage.train.own, stage.train.resources
    if resources.gpus == 0 or (device is not None and device.startswith("cpu")):
        if gate.at_most_gb is None:
            return Expected("a CPU run holds no GPU memory", unit="GB")
        return Expected(
            f"at most {gate.at_most_gb:g} GB of the process", at_most=gate.at_most_gb, unit="GB"
        )
    text, limits = "", []
    if changes_memory(train):
        # What holds without a plan: the limits of the card, and of the gate itself.
        text = f"not planned, because {not_ours(train)}"
    else:
        planned = training_memory(train, resources.ranks).peak / GB
        limits.append(planned * (1 + gate.over_plan))
        over = f"{gate.over_plan * 100:g} % over the planned {planned:.1f} GB"
        text = f"at most {limits[0]:.1f} GB: {over}"
    card = find_gpu(device or resources.gpu_type or "")
    if card is not None:
        size = card.memory_bytes / GB
        limits.append(gate.of_card * size)
        text += f"; {gate.of_card * 100:g} % of the card's {size:.0f} GB reserved"
    if gate.at_most_gb is not None:
        limits.append(gate.at_most_gb)
        text += f"; {gate.at_most_gb:g} GB"
    return Expected(text, at_most=min(limits, default=None), unit="GB")


def _judge_memory(
    gate: Memory, evidence: Evidence, expectation: Expected, say: _Say
) -> Judgement | None:
    if evidence.cause == "out_of_memory":
        return say("failed", "the GPU ran out of memory")
    on_cpu = (evidence.device or "").startswith("cpu")
    peak = _highest(evidence, "memory/rss_bytes" if on_cpu else "memory/peak_bytes")
    too_much = False
    seen = "its trainer logged no memory"
    if peak is not None and expectation.at_most is None:
        what = "process held {:.1f} GB of the machine's" if on_cpu else "GPU held {:.1f} GB of"
        seen = f"the {what.format(peak)} memory"
    elif peak is not None and expectation.at_most is not None:
        reserved = None if on_cpu else _highest(evidence, "memory/reserved_bytes")
        card = None if on_cpu else find_gpu(evidence.device or "")
        held = reserved if reserved is not None else peak
        of_card = math.inf if card is None else gate.of_card * card.memory_bytes / GB
        too_much = peak > expectation.at_most or held > of_card
        seen = f"{peak:.1f} GB" if on_cpu else f"peak {peak:.1f} GB"
        seen += f", {reserved:.1f} GB reserved" if reserved is not None else ""
    if not too_much and not evidence.complete:
        return None
    if peak is None or expectation.at_most is None:
        return say("not_judged", seen)
    return say(_verdict(not too_much), seen, peak)


# --- MFU -----------------------------------------------------------------------------------


def _expect_mfu(gate: Mfu, stage: PlannedStage) -> Expected:
    if stage.train.resources.gpus == 0:
        return Expected("no peak is known of a CPU", unit="share")
    text = f"at least {gate.at_least * 100:g} % of the dense peak"
    if replaced_model(stage.train.own) is not None:
        text += f", with FLOPs estimated as 6N: {not_ours(stage.train.own)}"
    return Expected(text, at_least=gate.at_least, unit="share")


def _judge_mfu(
    gate: Mfu, evidence: Evidence, _expectation: Expected, say: _Say
) -> Judgement | None:
    if not evidence.complete:
        return None
    curve = evidence.curve("mfu")
    if not len(curve):
        seen = f"no peak is known of {evidence.device or 'its device'}, so there is no MFU"
        return say("not_judged", seen)
    # The first steps contain compilation and cold caches.
    later = [v for s, v in _points(curve) if 2 * s > curve.steps[-1] and math.isfinite(v)]
    if not later:
        return say("not_judged", "no MFU was logged in its second half")
    value = statistics.median(later)
    steps = f"{curve.steps[-len(later)]:,} to {curve.steps[-1]:,}"
    seen = f"{value * 100:.1f} %, the median of steps {steps}"
    return say(_verdict(value >= gate.at_least), seen, value, curve.steps[-1])


# --- bit-exact resume ----------------------------------------------------------------------


def _expect_exact_resume(gate: ExactResume, stage: PlannedStage) -> Expected:  # noqa: ARG001 - one of a table
    steps = stage.runs[stage.whole].own.steps
    return Expected(
        f"resuming from step {stage.middle:,} gives every weight and optimizer file of step "
        f"{steps:,} bit for bit"
    )


def _judge_exact_resume(
    _gate: ExactResume, evidence: Evidence, _expectation: Expected, say: _Say
) -> Judgement | None:
    pair = evidence.pair
    if pair is None:
        return None
    say = partial(say, run_id=pair.resumed_id, step=pair.step)
    if pair.problem is not None:
        return say("failed" if pair.failed else "not_judged", pair.problem)
    names = sorted(pair.whole.keys() | pair.resumed.keys())
    if not names:
        return say("not_judged", "their checkpoints hold no file of tensors to compare")
    other = [name for name in names if pair.whole.get(name) != pair.resumed.get(name)]
    if other:
        return say("failed", f"{len(other)} of {len(names)} files differ: {', '.join(other[:4])}")
    return say("passed", f"all {len(names)} files are equal")


# --- shared --------------------------------------------------------------------------------


def _highest(evidence: Evidence, name: str) -> float | None:
    highest = max(evidence.curve(name).values, default=None)
    return None if highest is None else highest / GB


def _points(curve: Curve) -> zip[tuple[int, float]]:
    return zip(curve.steps, curve.values, strict=True)


def _verdict(holds: bool) -> GateResult:
    return "passed" if holds else "failed"


_Expect = Callable[[Any, PlannedStage], Expected]
_Judge = Callable[[Any, Evidence, Expected, _Say], Judgement | None]
_RULES: dict[GateName, tuple[_Expect, _Judge]] = {
    "first_loss": (_expect_first_loss, _judge_first_loss),
    "falling_loss": (_expect_falling_loss, _judge_falling_loss),
    "no_alerts": (_expect_no_alerts, _judge_no_alerts),
    "memory": (_expect_memory, _judge_memory),
    "mfu": (_expect_mfu, _judge_mfu),
    "exact_resume": (_expect_exact_resume, _judge_exact_resume),
}
