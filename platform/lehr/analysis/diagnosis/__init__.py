"""Diagnose a run's curves: what was seen, since when, how sure it is, and what to try.

Each rule uses only recorded series, so it can be applied at any time and gives the same answer.
Rules prefer no alert to a false one: a sign must last. docs/judgement.md has their measured
accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from lehr.analysis.batches import DIGEST, EPOCH
from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import (  # noqa: F401 - an import registers the rules
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
    REGISTERED,
    VAL_LOSS,
    DiagnosedRun,
    Loss,
    Needs,
    Places,
    Rule,
    Sign,
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
    *machine_rules.OWN,
    machine_rules.SLOWEST,
    *(f"params/{part}/{what}" for part in PARTS for what in ("grad_norm", "update_ratio")),
    DIGEST,
    EPOCH,
)
"""The metrics that the rules read. Those of parts are logged every 50 steps: they cost little."""
EXACT = (DIGEST, EPOCH)
"""Those of them of which a rule needs every point, superseded ones included."""


@dataclass(frozen=True)
class Alert(Sign):
    code: AlertCode = field(kw_only=True)  # Name of the rule.

    @property
    def message(self) -> str:
        return f"{self.seen}. {self.advice}"


RULES: dict[AlertCode, Rule] = {code: REGISTERED[code][0] for code in get_args(AlertCode)}
NEEDS = {code: needs for code, (_, needs) in REGISTERED.items()}


def diagnose(
    curves: Mapping[str, Curve],
    *,
    total_steps: int | None,
    warmup_steps: int = 0,
    changes: Sequence[int] = (),
    losses: Sequence[Loss] = (),
    places: Places | None = None,
) -> list[Alert]:
    """Return the alerts of a run, in order of the step at which each began.

    Args:
        curves: by metric name, of those in ``JUDGED``; what is missing is not judged. Also
            ``params/<part>/...`` of any other part.
        total_steps: how far the run is to go; None if that is not known. Then rules that need it
            do not judge.
        warmup_steps: while the learning rate rises, loss and gradients may do anything.
        changes: steps after which the shape of a batch changes on purpose.
        losses: what is not on record.
        places: where its ranks are.
    """
    run = DiagnosedRun(
        curves, total_steps, warmup_steps, tuple(changes), tuple(losses), places or Places()
    )
    # A value of 1e300 overflows in a mean; what follows from it is not finite, and no sign.
    with np.errstate(all="ignore"):
        found = [
            Alert(**vars(sign), code=code) for code, rule in RULES.items() for sign in rule(run)
        ]
    return sorted(found, key=lambda alert: (alert.step, alert.code))


def unjudged(
    points: Mapping[str, tuple[int, int]], total_steps: int | None
) -> dict[AlertCode, list[str]]:
    """Return the rules that cannot judge a run, each with what it needs.

    ``points`` has for each metric how many it has, and how many after the warmup.
    """
    counts = dict(points)
    for name, count in points.items():
        part = f"params/*/{name.rsplit('/', 1)[-1]}" if name.startswith("params/") else name
        counts[part] = max(counts.get(part, count), count)
    found = {code: list(_lacks(NEEDS[code], counts, total_steps)) for code in RULES}
    if machine_rules.SLOWEST not in points:
        del found["straggler"]  # A single rank waits for no other.
    return {code: lacks for code, lacks in found.items() if lacks}


def _lacks(
    needs: Needs, counts: Mapping[str, tuple[int, int]], total_steps: int | None
) -> Iterator[str]:
    missing = [group for group in needs.metrics if not any(counts.get(n, (0,))[0] for n in group)]
    yield from (" or ".join(group) for group in missing)
    there = max(counts.get(name, (0, 0))[needs.after_warmup] for name in needs.metrics[-1])
    if not missing and there < needs.points:
        when = " after the warmup" if needs.after_warmup else ""
        name = " or ".join(needs.metrics[-1])
        yield f"{needs.points} points of {name}{when} (it has {there})"
    if needs.length and total_steps is None:
        yield "the number of steps"
