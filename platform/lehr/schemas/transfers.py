"""The transfer of a learning rate from a sweep to a larger training."""

from __future__ import annotations

from lehr.schemas.base import View


class ChangeView(View):
    """What differs between the sweep's trials and the target."""

    quantity: str
    """width, depth, batch (tokens of a step) or tokens (of the whole training)."""
    source: float
    target: float
    ratio: float
    """target / source."""
    factor: float | None = None
    """Of the rate, by the chosen rule; null if the rule does not use this quantity."""
    formula: str | None = None
    source_of_rule: str | None = None
    """The publication."""
    doubt: str | None = None


class RuleView(View):
    """One rule's answer."""

    name: str
    title: str
    rate: float
    chosen: bool
    formula: str
    """Of the target's rate, from the sweep's rate or by itself."""
    source: str
    domain: str
    """Where its publication, or measurement, supports it."""
    outside: str | None = None
    """Why this transfer is outside of it; null inside."""


class UsualView(View):
    """The rate of a published model of about the target's size: what is usual, not what is best."""

    name: str
    rate: float
    source: str


class TransferView(View):
    sweep_id: str
    sweep: str
    target: str
    """Name of the spec that the rate is for."""
    rule: str
    rate: float
    """The recommended rate of the target."""
    likely: tuple[float, float] | None = None
    """The interval that should hold the target's best rate with 68 %: the sweep's interval and the
    rule's own doubt. Null if the sweep's trials bracket no minimum."""
    sure: tuple[float, float] | None = None
    """The same with 95 %."""
    doubt: float
    """Factor by which the rule alone may be wrong (one standard deviation)."""
    from_rate: float
    """The sweep's own best rate."""
    from_likely: tuple[float, float] | None = None
    from_sure: tuple[float, float] | None = None
    changes: list[ChangeView]
    rules: list[RuleView]
    usual: list[UsualView]
    warnings: list[str]
    yaml: str
    """The target's spec with the rate, and the reasons as comments: for ``lehr submit`` or ``lehr
    rollout``."""
