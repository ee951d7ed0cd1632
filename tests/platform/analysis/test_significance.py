"""The sentence on two groups of seeds, against worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.noise import pooled_noise
from lehr.analysis.significance import Group, cumulative, judge, mean_note, quantile

LOSS = {"goal": "minimize", "metric": "val/loss"}
A = Group("a", (3.00, 3.01, 3.02))


def test_a_clear_difference_has_its_interval():
    found = judge(A, Group("b", (2.90, 2.91, 2.93)), **LOSS)
    assert found.verdict == "differs"
    assert found.sentence == "b is better than a by 0.097 ± 0.031 (means of 3 seeds each)."


def test_welch_agrees_with_a_worked_example():
    # Two samples of unequal size and variance; computed by hand with the Welch-Satterthwaite df.
    a, b = (27.5, 21.0, 19.0, 23.6, 17.0), (27.1, 22.0, 20.8)
    errors = np.var(a, ddof=1) / 5, np.var(b, ddof=1) / 3
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / 4 + errors[1] ** 2 / 2)
    assert freedom == pytest.approx(5.137, abs=1e-3)
    found = judge(Group("a", a), Group("b", b), **LOSS)
    # t(0.975) is 2.571 with 5 and 2.447 with 6 degrees of freedom; between them, 2.551.
    assert found.half_width / math.sqrt(sum(errors)) == pytest.approx(2.551, abs=3e-3)


def test_a_small_lead_says_how_many_more_seeds_would_tell():
    found = judge(A, Group("b", (2.98, 2.98, 3.005)), **LOSS)
    assert found.verdict == "within_noise"
    # 0.0217 found in 80 % of cases against a noise of 0.0125: seven seeds of each in all.
    assert found.more_seeds == 4
    assert found.sentence.endswith(
        "within seed noise (means of 3 seeds each); about 4 more seeds each would decide."
    )


def test_a_difference_too_small_to_tell_is_said():
    found = judge(A, Group("b", (3.00, 3.01, 3.021)), **LOSS)
    assert found.more_seeds is None
    assert "more than 30 seeds each" in found.sentence
    wide = judge(Group("a", (3.0, 3.3, 2.7)), Group("b", (3.001, 3.3, 2.7)), **LOSS)
    assert wide.sentence.startswith("b and a show no difference in val/loss (0.00 ± 0.68), within")


def test_one_seed_each_is_unknown_unless_other_groups_tell_the_noise():
    one, other = Group("a", (3.0,)), Group("b", (2.5,))
    found = judge(one, other, **LOSS, measure="lehr seeds a --n 3")
    assert (found.verdict, found.half_width) == ("unknown", None)
    assert "`lehr seeds a --n 3` measures it" in found.sentence
    noise = pooled_noise([(1.0, 1.1, 1.2), (5.0, 5.1, 5.2)])
    found = judge(one, other, **LOSS, noise=noise)
    # t(0.975, 4) * 0.1 * sqrt(2).
    assert found.half_width == pytest.approx(2.776445 * 0.1 * math.sqrt(2))
    assert found.sentence.endswith("(1 seed each; noise pooled over 2 groups).")


def test_maximize_turns_better_round_and_an_open_goal_says_higher():
    b = Group("b", (3.20, 3.21, 3.22))
    assert "b is worse than a" in judge(A, b, **LOSS).sentence
    assert "b is better than a" in judge(A, b, goal="maximize", metric="mfu").sentence
    assert "b is higher in x than a" in judge(A, b, goal=None, metric="x").sentence


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_diverged_seeds_are_said_and_never_averaged(bad):
    found = judge(A, Group("b", (2.9, bad)), **LOSS)
    assert (found.verdict, found.difference) == ("diverged", None)
    assert found.sentence.startswith("1 of 2 seeds of b diverged (val/loss is not finite)")
    assert mean_note(Group("b", (2.9, bad)), "val/loss") == "b: 1 of 2 seeds diverged."


def test_equal_values_of_all_seeds_have_no_difference():
    same = Group("b", (3.0, 3.0))
    found = judge(Group("a", (3.0, 3.0)), same, **LOSS)
    assert found.verdict == "within_noise"
    assert found.sentence.startswith("b and a have the same val/loss")


def test_a_group_without_values_is_an_error():
    with pytest.raises(ValueError, match="no values"):
        judge(A, Group("b", ()), **LOSS)


def test_mean_has_the_interval_of_its_seeds():
    # t(0.975, 2) * 0.01 / sqrt(3) is 0.0248.
    assert mean_note(A, "val/loss") == "a: val/loss 3.010 ± 0.025 (mean of 3 seeds)."
    assert mean_note(Group("a", (3.0,)), "val/loss") is None


@pytest.mark.parametrize("value", [1e60, -1e200, 1e308])
def test_values_beyond_all_bounds_count_as_diverged(value):
    found = judge(A, Group("b", (2.9, value, value)), **LOSS)
    assert (found.verdict, found.difference) == ("diverged", None)
    assert "2 of 3 seeds of b diverged (val/loss is beyond 1e+50)" in found.sentence
    assert mean_note(Group("b", (2.9, value)), "val/loss") == "b: 1 of 2 seeds diverged."


def test_noise_whose_square_is_too_small_for_a_float_is_judged():
    tiny = Group("b", (0.0, 1e-100, 2e-100))
    found = judge(Group("a", (0.0, 1e-100, 3e-100)), tiny, **LOSS)
    assert found.verdict == "within_noise"
    assert 1e-100 < found.half_width < 1e-99


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        # NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
        (0.975, 1, 12.706),
        (0.975, 2, 4.303),
        (0.975, 5, 2.571),
        (0.975, 30, 2.042),
        (0.95, 10, 1.812),
        (0.999, 4, 7.173),
        (0.90, 100, 1.290),
    ],
)
def test_quantiles_are_those_of_published_tables(probability, freedom, value):
    assert quantile(probability, freedom) == pytest.approx(value, abs=5e-4)


@given(st.floats(-1e6, 1e6))
def test_one_and_two_degrees_of_freedom_have_closed_forms(t):
    assert cumulative(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-9)
    assert cumulative(t, 2) == pytest.approx(0.5 + t / (2 * math.sqrt(2 + t * t)), abs=1e-9)


@given(st.floats(0.5, 0.999), st.floats(1, 1e4))
def test_the_quantile_inverts_the_distribution(probability, freedom):
    found = quantile(probability, freedom)
    assert cumulative(found, freedom) == pytest.approx(probability, abs=1e-8)
    assert cumulative(-found, freedom) == pytest.approx(1 - probability, abs=1e-8)


@pytest.mark.parametrize("wrong", [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_a_quantile_outside_its_range_is_an_error(wrong):
    with pytest.raises(ValueError, match="no quantile"):
        quantile(*wrong)
