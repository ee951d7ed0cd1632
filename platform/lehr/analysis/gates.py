"""Judge the gates of a rollout's stage: what was expected, what was seen.

Pure: from recorded curves, digests and the stage's plan. A certain failure is reported as soon as
it is seen. A pass is reported once no further evidence can come.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lehr.analysis.curve import Curve
from lehr.analysis.gate_evidence import Evidence, Expected, GateResult, Judgement
from lehr.analysis.replaced_parts import changes_memory, not_ours, replaced_model
from lehr.specs.gates import (
    ExactResume,
    FallingLoss,
    FirstLoss,
    GateName,
    Memory,
    Mfu,
    NoAlerts,
)
from lehr.specs.stages import PlannedStage
from lehr_trainer.planning.first_loss import predicted_first_loss
from lehr_trainer.planning.hardware import find_gpu
from lehr_trainer.planning.memory import training_memory

GB = 1e9
_LAST_SHARE = 10
"""The loss at the end is the median of the last tenth of the steps, at least three."""
_LEAST_POINTS = 6
"""With fewer steps, a fall is not significant."""

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
    gate = stage.gates[name]
    return _EXPECTED[name](gate, stage)


def judge(name: GateName, stage: PlannedStage, evidence: Evidence) -> Judgement | None:
    """Judge a gate. Return None while it is too early, or when the gate is switched off."""
    gate = stage.gates[name]
    if not gate.enabled:
        return None
    return _JUDGES[name](gate, stage, evidence)


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


def _judge_first_loss(gate: FirstLoss, stage: PlannedStage, evidence: Evidence) -> Judgement | None:
    expectation = _expect_first_loss(gate, stage)
    curve = evidence.curves.get("train/loss")
    if curve is None or not len(curve):
        return _nothing_seen("first_loss", expectation, evidence, "no loss was logged")
    step, value = curve.steps[0], curve.values[0]
    if step > 1:
        seen = f"its first loss is logged at step {step:,} (diagnostics.log_every)"
        return Judgement("first_loss", "not_judged", expectation, seen, run_id=evidence.run_id)
    if expectation.at_least is None or expectation.at_most is None:
        seen = f"{value:.2f} nats at step 1"
        return Judgement(
            "first_loss", "not_judged", expectation, seen, value, evidence.run_id, step
        )
    return Judgement(
        "first_loss",
        _verdict(expectation.at_least <= value <= expectation.at_most),
        expectation,
        f"{value:.2f} nats at step 1",
        value,
        evidence.run_id,
        step,
    )


# --- falling loss --------------------------------------------------------------------------


def _expect_falling_loss(gate: FallingLoss, stage: PlannedStage) -> Expected:
    text = f"at least {gate.by * 100:g} % under the first loss by step {stage.judge_after:,}"
    return Expected(text, unit="nats")


def _judge_falling_loss(
    gate: FallingLoss, stage: PlannedStage, evidence: Evidence
) -> Judgement | None:
    expectation = _expect_falling_loss(gate, stage)
    curve = evidence.curves.get("train/loss")
    if curve is None or not len(curve):
        return _nothing_seen("falling_loss", expectation, evidence, "no loss was logged")
    lost = next((s for s, v in _points(curve) if not math.isfinite(v)), None)
    if lost is not None:
        value = curve.values[list(curve.steps).index(lost)]
        seen = f"the loss became {value} at step {lost:,}"
        return Judgement("falling_loss", "failed", expectation, seen, None, evidence.run_id, lost)
    if not evidence.complete:
        return None
    if len(curve) < _LEAST_POINTS:
        seen = f"only {len(curve)} of its steps were logged; {_LEAST_POINTS} are needed"
        return Judgement("falling_loss", "not_judged", expectation, seen, run_id=evidence.run_id)
    first = curve.values[0]
    last = statistics.median(curve.values[-max(3, len(curve) // _LAST_SHARE) :])
    limit = first * (1 - gate.by)
    way = "under" if last <= first else "over"
    seen = (
        f"{last:.3f} nats by step {curve.steps[-1]:,}, {abs(1 - last / first) * 100:.1f} % {way} "
        f"the first {first:.3f}"
    )
    return Judgement(
        "falling_loss",
        _verdict(last <= limit),
        replace(expectation, at_most=limit),
        seen,
        last,
        evidence.run_id,
        curve.steps[-1],
    )


# --- no alert ------------------------------------------------------------------------------


def _expect_no_alerts(gate: NoAlerts, stage: PlannedStage) -> Expected:  # noqa: ARG001 - one of a table
    ignored = f" (except {', '.join(gate.ignore)})" if gate.ignore else ""
    return Expected(f"the diagnosis of its curves finds nothing wrong{ignored}")


def _judge_no_alerts(gate: NoAlerts, stage: PlannedStage, evidence: Evidence) -> Judgement | None:
    expectation = _expect_no_alerts(gate, stage)
    found = [one for one in evidence.alerts if one.code not in gate.ignore]
    # Curves often show a sign that disappears again. So, except for NaN, alerts count only at the
    # end.
    alert = next((one for one in found if evidence.complete or one.code == "nan"), None)
    if alert is not None:
        return Judgement(
            "no_alerts", "failed", expectation, alert.message, None, evidence.run_id, alert.step
        )
    curve = evidence.curves.get("train/loss")
    if curve is None or not len(curve):
        return _nothing_seen("no_alerts", expectation, evidence, "no loss was logged")
    if not evidence.complete:
        return None
    seen = f"none in {len(curve):,} logged steps"
    return Judgement(
        "no_alerts", "passed", expectation, seen, None, evidence.run_id, curve.steps[-1]
    )


# --- memory --------------------------------------------------------------------------------


def _expect_memory(gate: Memory, stage: PlannedStage, device: str | None = None) -> Expected:
    resources = stage.train.resources
    if resources.gpus == 0 or (device is not None and device.startswith("cpu")):
        if gate.at_most_gb is None:
            return Expected("a CPU run holds no GPU memory", unit="GB")
        return Expected(
            f"at most {gate.at_most_gb:g} GB of the process", at_most=gate.at_most_gb, unit="GB"
        )
    if changes_memory(stage.train.own):
        return _expect_memory_of_parts(gate, stage, device)
    planned = training_memory(stage.train.own, resources.ranks).peak / GB
    limit = planned * (1 + gate.over_plan)
    text = f"at most {limit:.1f} GB: {gate.over_plan * 100:g} % over the planned {planned:.1f} GB"
    card = find_gpu(device or resources.gpu_type or "")
    if card is not None:
        size = card.memory_bytes / GB
        limit = min(limit, gate.of_card * size)
        text += f"; {gate.of_card * 100:g} % of the card's {size:.0f} GB reserved"
    if gate.at_most_gb is not None:
        text += f"; {gate.at_most_gb:g} GB"
        limit = min(limit, gate.at_most_gb)
    return Expected(text, at_most=limit, unit="GB")


def _expect_memory_of_parts(gate: Memory, stage: PlannedStage, device: str | None) -> Expected:
    """Return the limits that hold without a plan: those of the card, and of the gate itself."""
    text, limits = f"not planned, because {not_ours(stage.train.own)}", []
    card = find_gpu(device or stage.train.resources.gpu_type or "")
    if card is not None:
        size = card.memory_bytes / GB
        limits.append(gate.of_card * size)
        text += f"; {gate.of_card * 100:g} % of the card's {size:.0f} GB reserved"
    if gate.at_most_gb is not None:
        limits.append(gate.at_most_gb)
        text += f"; {gate.at_most_gb:g} GB"
    return Expected(text, at_most=min(limits, default=None), unit="GB")


def _judge_memory(gate: Memory, stage: PlannedStage, evidence: Evidence) -> Judgement | None:
    expectation = _expect_memory(gate, stage, evidence.device)
    if evidence.cause == "out_of_memory":
        seen = "the GPU ran out of memory"
        return Judgement("memory", "failed", expectation, seen, run_id=evidence.run_id)
    on_cpu = (evidence.device or "").startswith("cpu")
    peak = _highest(evidence, "memory/rss_bytes" if on_cpu else "memory/peak_bytes")
    if peak is None:
        if not evidence.complete:
            return None
        seen = "its trainer logged no memory"
        return Judgement("memory", "not_judged", expectation, seen, run_id=evidence.run_id)
    if expectation.at_most is None:
        if not evidence.complete:
            return None
        what = "process held {:.1f} GB of the machine's" if on_cpu else "GPU held {:.1f} GB of"
        text = f"the {what.format(peak)} memory"
        return Judgement("memory", "not_judged", expectation, text, run_id=evidence.run_id)
    reserved = None if on_cpu else _highest(evidence, "memory/reserved_bytes")
    card = None if on_cpu else find_gpu(evidence.device or "")
    too_much = expectation.at_most is not None and peak > expectation.at_most
    held = reserved if reserved is not None else peak
    if card is not None and held > gate.of_card * card.memory_bytes / GB:
        too_much = True
    if not too_much and not evidence.complete:
        return None
    seen = f"peak {peak:.1f} GB" if not on_cpu else f"{peak:.1f} GB"
    seen += f", {reserved:.1f} GB reserved" if reserved is not None else ""
    return Judgement("memory", _verdict(not too_much), expectation, seen, peak, evidence.run_id)


# --- MFU -----------------------------------------------------------------------------------


def _expect_mfu(gate: Mfu, stage: PlannedStage) -> Expected:
    if stage.train.resources.gpus == 0:
        return Expected("no peak is known of a CPU", unit="share")
    text = f"at least {gate.at_least * 100:g} % of the dense peak"
    if replaced_model(stage.train.own) is not None:
        text += f", with FLOPs estimated as 6N: {not_ours(stage.train.own)}"
    return Expected(text, at_least=gate.at_least, unit="share")


def _judge_mfu(gate: Mfu, stage: PlannedStage, evidence: Evidence) -> Judgement | None:
    expectation = _expect_mfu(gate, stage)
    if not evidence.complete:
        return None
    curve = evidence.curves.get("mfu")
    if curve is None:
        seen = f"no peak is known of {evidence.device or 'its device'}, so there is no MFU"
        return Judgement("mfu", "not_judged", expectation, seen, run_id=evidence.run_id)
    # The first steps contain compilation and cold caches.
    later = [v for s, v in _points(curve) if 2 * s > curve.steps[-1] and math.isfinite(v)]
    if not later:
        seen = "no MFU was logged in its second half"
        return Judgement("mfu", "not_judged", expectation, seen, run_id=evidence.run_id)
    value = statistics.median(later)
    return Judgement(
        "mfu",
        _verdict(value >= gate.at_least),
        expectation,
        f"{value * 100:.1f} %, the median of steps {curve.steps[-len(later)]:,} to "
        f"{curve.steps[-1]:,}",
        value,
        evidence.run_id,
        curve.steps[-1],
    )


# --- bit-exact resume ----------------------------------------------------------------------


def _expect_exact_resume(gate: ExactResume, stage: PlannedStage) -> Expected:  # noqa: ARG001 - one of a table
    steps = stage.runs[stage.whole].own.steps
    return Expected(
        f"resuming from step {stage.middle:,} gives every weight and optimizer file of step "
        f"{steps:,} bit for bit"
    )


def _judge_exact_resume(
    gate: ExactResume, stage: PlannedStage, evidence: Evidence
) -> Judgement | None:
    expectation = _expect_exact_resume(gate, stage)
    pair = evidence.pair
    if pair is None:
        return None

    def judgement(verdict: GateResult, seen: str) -> Judgement:
        return Judgement(
            "exact_resume", verdict, expectation, seen, run_id=pair.resumed_id, step=pair.step
        )

    if pair.problem is not None:
        return judgement("failed" if pair.failed else "not_judged", pair.problem)
    names = sorted(pair.whole.keys() | pair.resumed.keys())
    if not names:
        return judgement("not_judged", "their checkpoints hold no file of tensors to compare")
    other = [name for name in names if pair.whole.get(name) != pair.resumed.get(name)]
    if other:
        return judgement(
            "failed", f"{len(other)} of {len(names)} files differ: {', '.join(other[:4])}"
        )
    return judgement("passed", f"all {len(names)} files are equal")


# --- shared --------------------------------------------------------------------------------


def _nothing_seen(
    gate: GateName, expectation: Expected, evidence: Evidence, seen: str
) -> Judgement | None:
    """Fail a run that has ended without evidence."""
    if not evidence.complete:
        return None
    return Judgement(gate, "failed", expectation, seen, run_id=evidence.run_id)


def _highest(evidence: Evidence, name: str) -> float | None:
    curve = evidence.curves.get(name)
    return max(curve.values) / GB if curve is not None and len(curve) else None


def _points(curve: Curve) -> zip[tuple[int, float]]:
    return zip(curve.steps, curve.values, strict=True)


def _verdict(holds: bool) -> GateResult:
    return "passed" if holds else "failed"


_EXPECTED: dict[GateName, Callable[[Any, PlannedStage], Expected]] = {
    "first_loss": _expect_first_loss,
    "falling_loss": _expect_falling_loss,
    "no_alerts": _expect_no_alerts,
    "memory": _expect_memory,
    "mfu": _expect_mfu,
    "exact_resume": _expect_exact_resume,
}
_JUDGES: dict[GateName, Callable[[Any, PlannedStage, Evidence], Judgement | None]] = {
    "first_loss": _judge_first_loss,
    "falling_loss": _judge_falling_loss,
    "no_alerts": _judge_no_alerts,
    "memory": _judge_memory,
    "mfu": _judge_mfu,
    "exact_resume": _judge_exact_resume,
}
