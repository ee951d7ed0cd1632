"""Decisions on claims: the evidence of pairs, and the false discovery rate over many claims."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lehr.analysis.claims import ALPHA, FIRST, MOST, decide, required


def stream(real: list[bool], gain: float, seed: int) -> tuple[float, float, float]:
    """Judge claims with normal noise as the service does. Return the false share of what is kept,
    the kept share of real gains, and the mean number of pairs.
    """
    rng, kept, pairs = np.random.default_rng(seed), [], []
    for number, is_real in enumerate(real, start=1):
        gains: list[float] = []
        looked, more, verdict = 0, FIRST, "undecided"
        while verdict == "undecided":
            gains += list(gain * is_real + rng.normal(0, math.sqrt(2), more))
            verdict, _, wanted = decide(gains, required(number, len(kept)), looked=looked)
            looked, more = len(gains), min(wanted or FIRST, FIRST, MOST - len(gains))
        pairs.append(len(gains))
        if verdict == "keep":
            kept.append(is_real)
    false = kept.count(False) / max(len(kept), 1)
    return false, sum(kept) / max(sum(real), 1), float(np.mean(pairs))


def test_evidence_without_a_gain_is_1_on_average_at_every_size_of_noise() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3)) * np.exp(rng.normal(size=(2000, 1)))
    assert np.mean([decide(row, math.inf).evidence for row in rows]) == pytest.approx(1, abs=0.1)
    assert decide(rows[0], math.inf).evidence == decide(8 * rows[0], math.inf).evidence
    # A gain below 0 has less.
    assert np.mean([decide(row - 0.5, math.inf).evidence for row in rows]) < 0.9


def test_claims_without_a_gain_are_rarely_kept_however_often_one_looks() -> None:
    kept = 0
    for row in np.random.default_rng(1).normal(size=(150, MOST)):
        looks = (decide(row[:n], 1 / ALPHA, looked=n - 1).verdict for n in range(2, MOST))
        kept += "keep" in looks
    assert kept / 150 <= ALPHA


def test_false_discovery_rate_and_power_over_streams_of_claims() -> None:
    mixed = [number % 5 == 4 for number in range(250)]
    false, power, pairs = np.mean([stream(mixed, 2.0, seed) for seed in range(2)], axis=0)
    assert false <= ALPHA
    assert power >= 0.9
    assert pairs < 12


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.02, 0.021, 0.019, 0.02, 0.022, 0.02], "keep"),
        ([-0.02, -0.021, -0.019, -0.02], "reject"),
        ([0.0] * 6, "reject"),  # Of a change that changes nothing.
        ([0.5, 0.4, 0.6, 0.5, 0.5, -math.inf], "reject"),  # A seed diverged.
        ([0.02, 0.001, 0.03, -0.004, 0.02, 0.01], "undecided"),
        ([0.02, 0.001, 0.03, -0.02] * (MOST // 4), "reject"),  # No more pairs are allowed.
    ],
)
def test_verdict_of(gains: list[float], verdict: str) -> None:
    assert decide(gains, required(1, 0)).verdict == verdict


def test_evidence_of_an_earlier_look_does_not_count() -> None:
    gains = [1.0, 1.0, 1.1, 0.9, 1.0, 1.0, -3.0]
    assert decide(gains, 100.0).verdict == "keep"
    assert decide(gains, 100.0, looked=7).verdict != "keep"


def test_each_kept_claim_makes_the_next_one_easier() -> None:
    assert required(9, 2) == pytest.approx(required(9, 0) / 3)
    assert sum(1 / required(n, 0) for n in range(1, 2000)) < ALPHA
