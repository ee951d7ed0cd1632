"""The settings that explain trials of a learning rate: shapes of a curve, and levels of noise.

Each shape is a Gaussian process around a parabola of unknown form, perhaps with a kink: there the
curve has a parabola of its own on each side. ``lr_posterior`` weights the settings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_SIZES = (1.0, 2.0, 4.0)
"""Standard deviations of the curve around its parabola, in units."""
_LENGTHS = (1.0, 2.0, 4.0)
"""Doublings of the rate over which the curve bends."""
_NOISES = (0.02, 0.06, 0.2, 0.5)
"""Standard deviations of one trial's loss, in units, tried if seeds do not measure it."""
_DEVIATIONS = (0.0, 0.06, 0.2)
"""Standard deviations of the losses from any of these curves, in units, tried if seeds measure the
noise: more seeds reduce the noise, not these."""
_SMOOTHNESS = ("five halves", "one half")
"""Kernels of the Matern family: smooth curves, and rough ones."""
_PARABOLA = (4.0, 1.0, 0.7)
"""Prior standard deviations of level, slope and curvature."""
_KINKS = 23
"""Rates around the best trial at which the slope may jump, one at a time."""
_KINK_SLOPE = 2.0
"""Prior standard deviation of the slope on each side of a kink, in units for each doubling."""
_KINK_SIZES = (0.05, 0.3)
"""Standard deviations of a kinked curve around its two parabolas, in units."""
_KINK_WEIGHT = 3.0
"""Weight of all kinked settings of a size in the mean curve; each other setting counts as 1."""


@dataclass(frozen=True)
class CurveShape:
    """A setting: a Gaussian process around a parabola, perhaps with a kink."""

    size: float
    length: float
    kernel: str
    kink: float | None = None  # log2 of the rate at which the slope jumps.
    weight: float = 1.0
    """How much it counts in the mean curve before the trials are seen."""


def noise_levels(measured: float | None) -> list[tuple[float, float]]:
    """Return the settings to try: the noise of one trial, and what no seed reduces."""
    if measured is None:
        return [(noise, 0.0) for noise in _NOISES]
    return [(min(max(measured, 1e-3), 1e6), deviation) for deviation in _DEVIATIONS]


def shapes(x: Array, y: Array) -> Iterator[CurveShape]:
    """Return the settings to consider for trials at ``x`` of heights ``y``."""
    import numpy as np

    for size, length, kernel in itertools.product(_SIZES, _LENGTHS, _SMOOTHNESS):
        yield CurveShape(size, length, kernel)
    best = x[y.argmin()]
    low = x[x < best].max(initial=x.min())
    high = x[x > best].min(initial=x.max())
    for size, kink in itertools.product(_KINK_SIZES, np.linspace(low, high, _KINKS + 2)[1:-1]):
        yield CurveShape(size, 2.0, "five halves", float(kink), _KINK_WEIGHT / _KINKS)


def features(at: Array, centre: float, kink: float | None) -> Array:
    """Return the terms of the parabola, or of the two beside a kink, at rates: [3 or 5, N]."""
    import numpy as np

    level, slope, curvature = _PARABOLA
    if kink is None:
        away = at - centre
        return np.stack([np.full_like(at, level), slope * away, curvature * away**2])
    below, above = np.maximum(kink - at, 0.0), np.maximum(at - kink, 0.0)
    lines = _KINK_SLOPE * below, _KINK_SLOPE * above
    return np.stack([np.full_like(at, level), *lines, curvature * below**2, curvature * above**2])


def matern(distance: Array, kernel: str) -> Array:
    """Compute the Matern covariance with unit size and length (Rasmussen & Williams, 4.2.1)."""
    import numpy as np

    scaled: Array = distance * (1.0 if kernel == "one half" else math.sqrt(5))
    falling: Array = np.exp(-scaled)
    return falling if kernel == "one half" else (1 + scaled + scaled**2 / 3) * falling
