"""Diagnose a run's curves: what was seen, since when, how sure it is, and what to try.

Each rule uses only recorded series, so it can be applied at any time and gives the same answer.
Rules prefer no alert to a false one: a sign must last. docs/judgement.md has their measured
accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lehr.analysis.batches import DIGEST, EPOCH
from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import (
    data_rules,
    fit_rules,
    loss_rules,
    machine_rules,
    update_rules,
)
from lehr.analysis.diagnosis.signs import (
    GRAD_NORM,
    LOSS,
    LR,
    PARTS,
    VAL_LOSS,
    DiagnosedRun,
    Sign,
    Sureness,
)
from lehr.specs.gates import AlertCode

JUDGED = (
    LOSS,
    LR,
    fit_rules.CHECK,
    fit_rules.SAME_TOKENS,
    VAL_LOSS,
    GRAD_NORM,
    machine_rules.STEP_TIME,
    machine_rules.SPEED,
    machine_rules.WAIT,
    *machine_rules.MEMORY,
    *(f"params/{part}/{what}" for part in PARTS for what in ("grad_norm", "update_ratio")),
    DIGEST,
    EPOCH,
)
"""The metrics that the rules read. Those of parts are logged every 50 steps: they cost little."""
EXACT = (DIGEST, EPOCH)
"""Those of them of which a rule needs every point, superseded ones included."""


@dataclass(frozen=True)
class Alert:
    code: AlertCode
    """Name of the rule."""
    step: int
    """First step."""
    seen: str
    """What was seen, in words and figures."""
    advice: str
    """What to try, with a factor where there is one."""
    sure: Sureness = "likely"
    """How sure it is: certain, likely or possible."""
    cause: str = ""
    """The usual cause."""
    source: str = ""
    """Where the criterion comes from."""

    @property
    def message(self) -> str:
        return f"{self.seen}. {self.advice}"


RULES: dict[AlertCode, Callable[[DiagnosedRun], Iterator[Sign]]] = {
    "nan": loss_rules.nan,
    "too_good": fit_rules.too_good,
    "diverging": loss_rules.diverging,
    "spikes": loss_rules.spikes,
    "oscillating": loss_rules.oscillating,
    "stagnant": loss_rules.stagnant,
    "low_lr": update_rules.low_lr,
    "high_lr": update_rules.high_lr,
    "exploding": update_rules.exploding,
    "exploding_part": update_rules.exploding_part,
    "dead_part": update_rules.dead_part,
    "overfitting": fit_rules.overfitting,
    "memorization": fit_rules.memorization,
    "implausible": fit_rules.implausible,
    "data_wait": machine_rules.data_wait,
    "slowdown": machine_rules.slowdown,
    "memory_creep": machine_rules.memory_creep,
    "repeated_batches": data_rules.repeated_batches,
    "other_data": data_rules.other_data,
}
NEEDS: dict[AlertCode, tuple[tuple[str, ...], ...]] = {
    "high_lr": (("params/*/update_ratio",),),
    "too_good": ((fit_rules.CHECK,), (fit_rules.SAME_TOKENS,)),
    "exploding": ((GRAD_NORM,),),
    "exploding_part": (("params/*/grad_norm",),),
    "dead_part": (("params/*/grad_norm",),),
    "overfitting": ((LOSS,), (VAL_LOSS,)),
    "memorization": ((LOSS,), (VAL_LOSS, EPOCH)),
    "data_wait": ((machine_rules.WAIT,), (machine_rules.STEP_TIME,)),
    "slowdown": ((machine_rules.SPEED, machine_rules.STEP_TIME),),
    "memory_creep": (machine_rules.MEMORY,),
    "repeated_batches": ((DIGEST,), (EPOCH,)),
    "other_data": ((DIGEST,),),
}
"""What each rule needs: one metric of each group. A rule without a row needs the loss."""


def diagnose(
    curves: Mapping[str, Curve],
    *,
    total_steps: int,
    warmup_steps: int = 0,
    changes: Sequence[int] = (),
) -> list[Alert]:
    """Return the alerts of a run, in order of the step at which each began.

    Args:
        curves: by metric name, of those in ``JUDGED``; what is missing is not judged. Also
            ``params/<part>/...`` of any other part.
        total_steps: how far the run is to go.
        warmup_steps: while the learning rate rises, loss and gradients may do anything.
        changes: steps after which the shape of a batch changes on purpose.
    """
    run = DiagnosedRun(curves, total_steps, warmup_steps, tuple(changes))
    # A value of 1e300 overflows in a mean; what follows from it is not finite, and no sign.
    with np.errstate(all="ignore"):
        found = [
            Alert(code, sign.step, sign.seen, sign.advice, sign.sure, sign.cause, sign.source)
            for code, rule in RULES.items()
            for sign in rule(run)
        ]
    return sorted(found, key=lambda alert: (alert.step, alert.code))


def unjudged(curves: Mapping[str, Curve]) -> dict[AlertCode, list[str]]:
    """Return the rules that cannot judge these curves, each with the metrics that it lacks."""
    parts = {f"params/*/{name.rsplit('/', 1)[-1]}" for name in curves if name.startswith("params/")}
    have = {name for name, curve in curves.items() if len(curve)} | parts
    found = {
        code: [" or ".join(group) for group in NEEDS.get(code, ((LOSS,),)) if not have & {*group}]
        for code in RULES
    }
    return {code: lacks for code, lacks in found.items() if lacks}
