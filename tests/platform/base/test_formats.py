"""Formatted numbers."""

import math

import pytest

from lehr.base import formats


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (31234.0, "31.2k"),
        (402000.0, "402k"),
        (999.96, "1.00k"),
        (999950.0, "1.00M"),
        (7.0, "7.00"),
        (0.0, "0.00"),
        (None, "—"),
        (math.nan, "—"),
    ],
)
def test_rate_format(value, text):
    assert formats.si(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(8.0, "8"), (9999.0, "9999"), (65_536.0, "65.5k"), (-10_000, "-10.0k")]
)
def test_amounts_are_exact_below_ten_thousand(value, text):
    assert formats.amount(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (2.44, "2.4 s"),
        (12, "12 s"),
        (99, "99 s"),
        (2100, "35 m"),
        (3570, "1 h"),
        (33120, "9 h 12 m"),
        (86400, "1 d"),
        (97200, "1 d 3 h"),
        (None, "—"),
        (-0.5, "0.0 s"),
        (-3, "—"),  # A clock was set back between the two times: it is not known.
    ],
)
def test_duration_format(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.parametrize(
    ("at", "text"), [(940.0, "60 s ago"), (1000.4, "0.0 s ago"), (4600.0, "1 h ahead"), (None, "—")]
)
def test_age_of_a_time_in_the_future_says_so(at, text):
    assert formats.ago(at, 1000.0) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5.2041, "5.204"),
        (12.2649, "12.26"),
        (0.41999, "0.420"),
        (131.2, "131.2"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (None, "—"),
        (0.0123456, "0.01235"),
    ],
)
def test_losses_have_four_digits(value, text):
    assert formats.loss(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(755_009_536, "755.0 M"), (1_241_581_568, "1.24 B"), (65_536_000, "65.5 M"), (512, "512")],
)
def test_parameter_count_format(value, text):
    assert formats.millions(value) == text


@pytest.mark.parametrize(
    ("value", "path", "shown"),
    [
        (3e-4, "train.optimizer.lr", "3.0e-4"),
        (0.03, "train.optimizer.lr", "0.03"),
        (0.1, "wd", "0.1"),
        (65_536.0, "train.precision.loss_scale.initial", "65536"),
        (3.16e-4, "", "3.16e-4"),
        (128, "hidden", "128"),
        ("adamw", "", "adamw"),
        (True, "fused", "true"),
        (0.1 + 0.2, "wd", "0.3"),
        ([0.1 + 0.2, 0.95], "betas", "[0.3, 0.95]"),
        ([0.9, 0.95], "betas", "[0.9, 0.95]"),
        ([2, "a"], "x", "[2, 'a']"),
    ],
)
def test_values_are_written_in_short_form(value, path, shown):
    assert formats.parameter(value, path) == shown


def test_a_learning_rate_looks_the_same_in_every_command():
    shown = {0.0099: "9.9e-3", 0.01: "0.01", 0.3: "0.3", 3.0: "3", 12.5: "12.5", 0.0: "0"}
    assert {v: formats.parameter(v, "train.optimizer.lr") for v in shown} == shown
    assert {v: formats.scientific(v) for v in shown} == shown
    assert formats.scientific(123.4, 2) == "120"
    assert formats.scientific(2e7) == "2.0e7"


def test_sparkline_follows_the_loss():
    assert formats.sparkline([8, 7, 6, 5, 4, 3, 2, 1]) == "█▇▆▅▄▃▂▁"
    assert formats.sparkline([4.0, 3.0, math.nan]) == "█▁x"
    assert formats.sparkline([]) == ""
    assert formats.sparkline([2.0, 2.0]) == "▁▁"
    assert len(formats.sparkline(list(range(1000)), 8)) == 8
    assert formats.sparkline([-1e308, 0.0, 1e308]) == "▁▅█"
    assert formats.sparkline([2.0, 1.0], unicode=False).isascii()


def test_chart_joins_the_points_of_a_curve_with_dots():
    assert formats.chart([3.0, 2.0, 1.0, 0.0], width=2, height=1) == ["⠙⢦"]
    assert formats.chart([1.0, 1.0], 3, 2) == ["⠀⠀⠀", "⣀⣀⣀"]


def test_paths_are_shortened_to_unique_names():
    assert formats.short_paths(["train.optimizer.lr", "train.seed"]) == ["lr", "seed"]
    assert formats.short_paths(["train.a.name", "train.b.name"]) == ["a.name", "b.name"]
    assert formats.short_paths(["train.optimizer.name"]) == ["optimizer.name"]


def test_names_beyond_the_first_few_are_counted():
    assert formats.listed([]) == ""
    assert formats.listed(["a", "b", "c", "d"]) == "a, b, c, d"
    assert formats.listed(["a", "b", "c"], most=1) == "a and 2 more"
