"""The learning rate for a larger training, from a sweep of a smaller one, with its interval.

The interval has two parts: where the sweep's own best rate lies (``lr_posterior``), and how far the
rule may be wrong. The second is a normal distribution in log2 of the rate, wider the more changes;
its widths are ``DOUBTS``, chosen on the 215M runs of Step Law's table and reported on the others
(docs/judgement.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from lehr.analysis.lr_fit import LrFit, Range
from lehr.analysis.lr_rules import DEFAULT, RULES, Quantity, Rule, Setting
from lehr.base.formats import scientific
from lehr.schemas.sweeps import RuleView

DOUBTS: dict[Quantity, float] = {"width": 0.25, "depth": 0.25, "batch": 0.2, "tokens": 0.16}
"""Standard deviation of each quantity's power. For tokens: half of the published 0.32."""
_ANY = 0.4  # Standard deviation, in doublings of the rate, of a transfer that changes anything.
DISAGREE = 2.0  # Factor between rules inside their domains from which a disagreement is reported.
_QUANTILES = 201


@dataclass(frozen=True)
class LrTransfer:
    """The answer of one rule, and the others beside it."""

    rate: float
    likely: Range | None
    """The interval that should hold the target's best rate with 68 %; None without the sweep's."""
    sure: Range | None  # The same with 95 %.
    doubt: float  # Factor by which the rule alone may be wrong (one standard deviation).
    chosen: RuleView
    answers: tuple[RuleView, ...]
    warnings: tuple[str, ...]


def transfer(fit: LrFit, source: Setting, target: Setting, rule: str = DEFAULT) -> LrTransfer:
    """Carry the best rate of a sweep, whose trials trained ``source``, to the training ``target``.

    Raises:
        KeyError: there is no such rule.
    """
    start = fit.best if fit.recommended is None else fit.recommended
    answers = tuple(
        _answer(one, start, source, target, chosen=one is RULES[rule]) for one in RULES.values()
    )
    [chosen] = [one for one in answers if one.chosen]
    doubt = deviation(source, target)
    likely = sure = None
    if fit.curves is not None:
        # A law does not depend on the sweep, but its interval must be of some width.
        factor = chosen.rate / start
        rates = [best * factor for best in fit.curves.best_rates.tolist()]
        if doubt:
            likely, sure = (interval(rates, doubt, share) for share in (0.68, 0.95))
        else:
            likely, sure = _scaled(fit.likely, factor), _scaled(fit.sure, factor)
    return LrTransfer(
        rate=chosen.rate,
        likely=likely,
        sure=sure,
        doubt=2**doubt,
        chosen=chosen,
        answers=answers,
        warnings=tuple(_warnings(fit, chosen, answers)),
    )


def _answer(rule: Rule, rate: float, source: Setting, target: Setting, *, chosen: bool) -> RuleView:
    powers = [f"{part.factor(source, target):.3g} ({part.quantity})" for part in rule.parts]
    return RuleView(
        name=rule.name,
        title=rule.title,
        rate=rule.rate(rate, source, target),
        chosen=chosen,
        formula=rule.formula or " x ".join(["the sweep's rate", *powers]),
        source=rule.source or "the product of its parts",
        domain=rule.domain,
        outside=rule.outside(source, target),
    )


def _scaled(found: Range | None, factor: float) -> Range | None:
    return None if found is None else (found[0] * factor, found[1] * factor)


def deviation(source: Setting, target: Setting) -> float:
    """Return the rule's own standard deviation, in doublings of the rate."""
    changes = {name: math.log2(source.ratio(target, name)) for name in DOUBTS}
    if not any(changes.values()):
        return 0.0
    return math.hypot(_ANY, *(DOUBTS[name] * change for name, change in changes.items()))


def interval(rates: Sequence[float], deviation: float, share: float) -> Range:
    """Return the central interval of rates with a normal doubt, in doublings, on each."""
    import numpy as np

    middle = np.log2(np.asarray(rates))
    normal = NormalDist()
    steps = [normal.inv_cdf((k + 0.5) / _QUANTILES) for k in range(_QUANTILES)]
    spread = middle[:, None] + deviation * np.asarray(steps)
    low, high = np.quantile(spread, ((1 - share) / 2, (1 + share) / 2))
    return float(2.0**low), float(2.0**high)


def _warnings(fit: LrFit, chosen: RuleView, answers: Sequence[RuleView]) -> list[str]:
    found = []
    if fit.recommended is None:
        where = {
            "low": "at the low edge of what was tried, so the best may be lower",
            "high": "at the high edge of what was tried, so the best may be higher",
        }.get(fit.edge or "", "one of too few rates")
        found.append(
            f"The sweep's best rate, {scientific(fit.best, 2)}, is {where}: there is no interval "
            "to carry. Extend the sweep first."
        )
    if chosen.outside:
        found.append(f"Rule {chosen.name} is outside its domain: {chosen.outside}.")
    for one in answers:
        apart = max(one.rate / chosen.rate, chosen.rate / one.rate)
        if one.name != "keep" and one.outside is None and apart > DISAGREE:
            found.append(
                f"Rule {one.name} gives {scientific(one.rate, 2)}, a factor of {apart:.2g} "
                "from the recommended rate."
            )
    return found
