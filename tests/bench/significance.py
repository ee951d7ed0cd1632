"""How often the sentence on two groups of seeds claims a difference that is not there, and how often
it finds one that is.

Usage: python tests/bench/significance.py [--draws 4000]

False claims: both groups have one mean. Power: the means differ by so many standard deviations
between seeds. "best of 6" ranks six equal points and judges the best against the next, as the notes
of a sweep do, with the noise pooled over all points.
"""

from __future__ import annotations

import argparse
import math

import numpy as np

from lehr.analysis.noise import pooled_noise
from lehr.analysis.significance import Group, judge

GAPS = (0.0, 1.0, 2.0, 3.0, 5.0)
SEEDS = (2, 3, 4, 5, 8, 12)


def _claims(a: np.ndarray, b: np.ndarray, *, pooled: bool) -> bool:
    first, second = Group("a", tuple(a)), Group("b", tuple(b))
    noise = pooled_noise([first.values, second.values]) if pooled else None
    found = judge(first, second, goal="minimize", metric="val/loss", noise=noise)
    return found.verdict == "differs"


def _share(
    draws: int, rng: np.random.Generator, *, n: int, m: int, gap: float, ratio: float
) -> float:
    """Return how often a difference is claimed. ``ratio``: of the second group's noise to the
    first's; the gap is in standard deviations of the wider.
    """
    wide = max(1.0, ratio)
    few = min(n, m) < 3  # As in comparisons: with fewer seeds the noise is pooled.
    return float(
        np.mean(
            [
                _claims(rng.normal(0, 1, n), rng.normal(gap * wide, ratio, m), pooled=few)
                for _ in range(draws)
            ]
        )
    )


def _best_of(draws: int, rng: np.random.Generator, *, n: int, points: int, ratio: float) -> float:
    """Return how often the best of equal points is said to lead. ``ratio``: of the noise of half of
    the points to that of the others.
    """
    claimed = 0
    for _ in range(draws):
        scales = [ratio if k % 2 else 1.0 for k in range(points)]
        values = sorted((rng.normal(0, scale, n) for scale in scales), key=np.mean)
        noise = pooled_noise([list(v) for v in values])
        first, second = (Group(str(k), tuple(values[k])) for k in (0, 1))
        found = judge(second, first, goal="minimize", metric="val/loss", noise=noise)
        claimed += found.verdict == "differs"
    return claimed / draws


def _coverage(draws: int, rng: np.random.Generator, *, n: int) -> float:
    held = 0
    for _ in range(draws):
        a, b = rng.normal(0, 1, n), rng.normal(1, 1, n)
        pooled = pooled_noise([list(a), list(b)]) if n < 3 else None
        found = judge(
            Group("a", tuple(a)), Group("b", tuple(b)), goal=None, metric="x", noise=pooled
        )
        assert found.difference is not None
        assert found.half_width is not None
        held += abs(found.difference - 1) <= found.half_width
    return held / draws


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4000)
    draws = parser.parse_args().draws
    rng = np.random.default_rng(0)
    error = 100 * math.sqrt(0.05 * 0.95 / draws)
    print(f"{draws} draws each; a share near 5 % is known to {error:.1f} points.\n")
    print("| seeds each | no difference | " + " | ".join(f"{g:g} sd" for g in GAPS[1:]), end="")
    print(" | interval holds |")
    print("|---:" * (len(GAPS) + 2) + "|")
    for n in SEEDS:
        shares = [_share(draws, rng, n=n, m=n, gap=gap, ratio=1.0) for gap in GAPS]
        print(f"| {n} | " + " | ".join(f"{share:.1%}" for share in shares), end="")
        print(f" | {_coverage(draws, rng, n=n):.1%} |")
    print("\n| no difference, but | false claims |\n|---|---:|")
    for n, m, ratio in (
        (2, 2, 3.0),
        (3, 3, 3.0),
        (5, 5, 3.0),
        (2, 5, 1.0),
        (3, 8, 3.0),
        (8, 3, 3.0),
    ):
        share = _share(draws, rng, n=n, m=m, gap=0.0, ratio=ratio)
        print(f"| {n} and {m} seeds, noise 1 and {ratio:g} | {share:.1%} |")
    for n, ratio in ((2, 1.0), (3, 1.0), (3, 3.0)):
        share = _best_of(draws, rng, n=n, points=6, ratio=ratio)
        print(f"| best of 6 points, {n} seeds each, noise 1 and {ratio:g} | {share:.1%} |")


if __name__ == "__main__":
    main()
