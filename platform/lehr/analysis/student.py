"""Student's t distribution, without SciPy: the light install has no numerical package.

The distribution function is a regularized incomplete beta function. It is computed by its
continued fraction (DLMF 8.17.22, https://dlmf.nist.gov/8.17#v) with Lentz's method, the quantile
by bisection.
"""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_EXACT = 1e-15
_MOST = 10_000


def cumulative(t: float, freedom: float) -> float:
    """Return the probability of a value of at most ``t``.

    Args:
        t: the value.
        freedom: degrees of freedom, greater than 0; need not be a whole number.
    """
    if t == 0:
        return 0.5
    square = t * t
    whole = freedom + square
    tail = 0.5 * _incomplete_beta(freedom / whole, square / whole, freedom / 2, 0.5)
    return tail if t < 0 else 1 - tail


@lru_cache(maxsize=4096)
def quantile(probability: float, freedom: float) -> float:
    """Return the value that is not exceeded with ``probability``, 0.5 to 1 exclusive.

    Raises:
        ValueError: an argument is out of its range.
    """
    if not 0.5 <= probability < 1 or not freedom > 0:
        raise ValueError(f"no quantile at {probability} with {freedom} degrees of freedom")
    low, high = 0.0, 1.0
    while cumulative(high, freedom) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if cumulative(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _incomplete_beta(x: float, rest: float, a: float, b: float) -> float:
    """Return I_x(a, b). ``rest``: 1 - x, which a subtraction would round where x is nearly 1."""
    if x <= 0 or rest <= 0:
        return float(rest <= 0)
    if x > (a + 1) / (a + b + 2):  # The fraction converges fast below this point only.
        return 1 - _incomplete_beta(rest, x, b, a)
    front = math.exp(
        math.lgamma(a + b)
        - math.lgamma(a)
        - math.lgamma(b)
        + a * math.log(x)
        + b * math.log(rest)
        - math.log(a)
    )
    return front / _fraction(x, a, b)


def _fraction(x: float, a: float, b: float) -> float:
    value, c, d = 1.0, 1.0, 0.0
    for step in range(1, _MOST):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / (_or_tiny(1 + term * d))
        c = _or_tiny(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < _EXACT:
            break
    return value


def _or_tiny(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
