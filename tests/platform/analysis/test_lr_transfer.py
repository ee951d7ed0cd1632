"""The carried rate and its interval."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.lr_fit import LrFit, fit_learning_rate
from lehr.analysis.lr_rules import RULES, Setting
from lehr.analysis.lr_transfer import deviation, interval, transfer

SMALL = Setting(width=512, depth=8, non_embedding=3e7, batch=1e5, tokens=1e9)


def larger(**changes: float) -> Setting:
    return Setting(**{**vars(SMALL), **changes})


def fitted(rates: Any, best: float = 1e-3) -> LrFit:
    """The verdict on a parabola of depth 0.02 a squared doubling."""
    fit = fit_learning_rate([(rate, 3 + 0.02 * math.log2(rate / best) ** 2) for rate in rates])
    assert fit is not None
    return fit


GRID = [2.0**k * 1e-3 for k in range(-3, 4)]


def test_same_setting_keeps_rate_and_interval() -> None:
    fit = fitted(GRID)
    found = transfer(fit, SMALL, SMALL)
    assert found.rate == fit.recommended
    assert found.doubt == 1.0
    assert found.likely == pytest.approx(fit.likely, rel=0.01)
    assert found.sure == pytest.approx(fit.sure, rel=0.01)


def test_rate_and_interval_move_by_the_rules_factor() -> None:
    fit = fitted(GRID)
    # A quarter for the width, 1/2 for the depth, 2 for the batch.
    found = transfer(fit, SMALL, larger(width=2048, depth=32, batch=16e5))
    assert fit.recommended is not None
    assert found.rate == pytest.approx(fit.recommended / 4)
    assert found.sure[0] < found.likely[0] < found.rate < found.likely[1] < found.sure[1]
    middle = math.sqrt(found.sure[0] * found.sure[1])
    assert middle == pytest.approx(found.rate, rel=0.1)
    assert found.chosen.formula.endswith("x 0.25 (width) x 0.5 (depth) x 2 (batch)")


def test_interval_is_that_of_a_normal_distribution_in_doublings() -> None:
    low, high = interval([1e-3], 1.5, 0.68)
    assert math.log2(high / 1e-3) == pytest.approx(1.5 * 0.9945, rel=0.03)
    assert math.log2(1e-3 / low) == pytest.approx(1.5 * 0.9945, rel=0.03)
    low, high = interval([1e-3], 1.5, 0.95)
    assert math.log2(high / 1e-3) == pytest.approx(1.5 * 1.96, rel=0.06)


@pytest.mark.parametrize("quantity", ["width", "depth", "batch", "tokens"])
def test_doubt_grows_with_each_quantity_in_both_directions(quantity: str) -> None:
    doubts = [
        deviation(SMALL, larger(**{quantity: getattr(SMALL, quantity) * ratio}))
        for ratio in (1.01, 4, 64)
    ]
    assert doubts == sorted(doubts)
    assert doubts[0] == pytest.approx(0.4, rel=0.01)
    assert doubts[2] > 1.5 * doubts[0]
    smaller = larger(**{quantity: getattr(SMALL, quantity) / 64})
    assert deviation(SMALL, smaller) == pytest.approx(doubts[2])


def test_best_at_an_edge_has_no_interval_and_a_warning() -> None:
    high = transfer(fitted([1e-4, 3e-4, 9e-4]), SMALL, larger(width=1024))
    assert (high.likely, high.sure) == (None, None)
    assert high.rate == pytest.approx(9e-4 / 2)
    assert "high edge" in high.warnings[0]
    assert "Extend the sweep" in high.warnings[0]
    low = transfer(fitted([1e-3, 3e-3]), SMALL, larger(width=1024))
    assert "low edge" in low.warnings[0]


def test_rules_that_disagree_inside_their_domains_are_named() -> None:
    deep = larger(width=2048, depth=64)
    [named] = [w for w in transfer(fitted(GRID), SMALL, deep).warnings if "a factor of" in w]
    assert named.startswith("Rule width gives 2.6e-4, a factor of 2.8 ")


def test_chosen_rule_outside_its_domain_is_named() -> None:
    found = transfer(fitted(GRID), SMALL, larger(width=512 * 32))
    assert found.warnings[0].startswith("Rule quarter is outside its domain: width changes")


def test_every_rule_answers_and_another_one_can_be_chosen() -> None:
    target = larger(width=1024, batch=4e5)
    found = transfer(fitted(GRID), SMALL, target, rule="width")
    assert [one.name for one in found.answers] == list(RULES)
    assert found.chosen.name == "width"
    by_name = {one.name: one.rate for one in found.answers}
    assert found.rate == by_name["width"]
    assert by_name["width"] == pytest.approx(by_name["quarter"] / 2**0.5)


SETTINGS = st.builds(
    lambda width, depth, batch, tokens: larger(
        width=width, depth=depth, batch=batch, tokens=tokens
    ),
    st.integers(64, 65_536),
    st.integers(1, 256),
    st.floats(1e2, 1e8),
    st.floats(1e5, 1e14),
)


@given(target=SETTINGS, there=SETTINGS)
def test_carrying_there_and_back_gives_the_rate_again(target: Setting, there: Setting) -> None:
    for rule in RULES.values():
        if rule.law is None:
            back = rule.rate(rule.rate(1e-3, target, there), there, target)
            assert back == pytest.approx(1e-3)


@given(target=SETTINGS)
def test_interval_holds_the_rate_of_a_symmetric_sweep(target: Setting) -> None:
    found = transfer(fitted(GRID), SMALL, target)
    assert found.sure[0] <= found.likely[0] <= found.rate * 1.05
    assert found.rate / 1.05 <= found.likely[1] <= found.sure[1]
