"""Laws of the final loss: what runs say of it, and what it predicts of a larger training."""

from __future__ import annotations

from lehr.schemas.base import Measured, View


class Believed(View):
    value: float
    likely: tuple[float, float]
    """Holds it with 68 %; ``sure``: with 95 %."""
    sure: tuple[float, float]


class PredictionView(View):
    name: str
    parameters: float
    """Without embeddings."""
    tokens: float
    loss: Believed
    """Of one training at the best values."""
    best: dict[str, Believed]
    """By path."""
    outside: str | None = None
    """How far it lies outside of what was measured, as a sentence."""


class LawRunView(View):
    run_id: str
    name: str
    parameters: float
    """Without embeddings."""
    tokens: float
    values: dict[str, float]
    loss: Measured
    """At its end; infinite if it diverged."""
    off: float | None = None
    """Standard deviations above the law; null if it diverged."""
    text: str
    """The same in words, and what was known of the target with it, if asked."""


class LawView(View):
    metric: str
    published: bool
    """Whether published runs counted as a weak prior."""
    numbers: dict[str, Believed]
    """E, alpha, beta of E + A parameters^-alpha + B (tokens + D0)^-beta; the rate's powers."""
    domain: dict[str, tuple[float, float]]
    """Lowest and highest that was measured."""
    runs: list[LawRunView]
    target: PredictionView
    beyond: PredictionView
    """Twice the parameters and tokens of the largest run."""
    facts: list[tuple[str, str]]
    """The same in words: name and text of each."""
    figures: dict[str, str]
    """SVG by title."""
