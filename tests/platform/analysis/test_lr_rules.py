"""Rules that carry a learning rate, against rates that publications state."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lehr.analysis.lr_rules import DEPTH, QUARTER, RULES, WIDTH, Setting, setting_of, step_law
from lehr_testing.paths import ROOT
from lehr_testing.seeding import train
from lehr_trainer.configs.train import TrainConfig

SMALL = Setting(width=512, depth=8, non_embedding=3e7, batch=1e5, tokens=1e9)


def larger(**changes: float) -> Setting:
    return Setting(**{**vars(SMALL), **changes})


@pytest.mark.parametrize(
    ("part", "changes", "factor"),
    [
        (WIDTH, {"width": 2048}, 1 / 4),
        (DEPTH, {"depth": 32}, 1 / 2),
        (QUARTER, {"batch": 1.6e6}, 2.0),
    ],
)
def test_part_is_a_power_of_its_quantity_alone(part: Any, changes: dict[str, float], factor: float):
    assert part.factor(SMALL, larger(**changes)) == pytest.approx(factor)
    others = {"width": 64, "depth": 2, "batch": 1e3, "tokens": 1e7} | dict.fromkeys(changes, 0)
    unchanged = {name: value for name, value in others.items() if value}
    assert part.factor(SMALL, larger(**unchanged)) == 1.0


def test_width_rule_gives_the_rates_of_llama_3_within_a_tenth():
    widths = {8e9: 4096, 70e9: 8192, 405e9: 16384}
    first, *others = (Setting(width, 80, size, 4e6, 1e12) for size, width in widths.items())
    found = [RULES["width"].rate(3e-4, first, other) for other in others]
    assert found == pytest.approx([1.5e-4, 7.5e-5])
    assert pytest.approx(found, rel=0.1) == [1.5e-4, 8.0e-5]


def test_step_law_by_hand():
    # 10^(log10 1.79 - 0.713 * 9 + 0.307 * 11)
    assert step_law(larger(non_embedding=1e9, tokens=1e11)) == pytest.approx(
        10**-2.787147, rel=1e-4
    )


@pytest.mark.parametrize(
    ("rule", "changes", "text"),
    [
        ("step_law", {}, "parameters without embeddings"),
        ("step_law", {"non_embedding": 5e8}, "tokens, fitted on"),
        ("step_law", {"non_embedding": 5e8, "tokens": 1e10, "batch": 1e3}, "its own best batch"),
        ("step_law", {"non_embedding": 5e8, "tokens": 1e10, "batch": 3e5}, None),
        ("quarter", {"width": 512 * 17}, "width changes by a factor of 17"),
        ("quarter", {"tokens": 1e12}, "tokens changes"),
        ("quarter", {"batch": 32e5}, None),
        ("keep", {"batch": 3e5}, "batch changes"),
    ],
)
def test_rule_states_why_it_is_outside_its_domain(rule: str, changes: Any, text: str | None):
    found = RULES[rule].outside(SMALL, larger(**changes))
    assert (found is None) if text is None else (found is not None and text in found)


@pytest.mark.parametrize(
    ("changes", "power"),
    [
        ({}, -1.0),
        ({"model": {"preset": "tiny", "parametrization": "mup", "base_width": 64}}, 0.0),
        ({"optimizer": {"name": "muon"}}, 0.0),
        ({"optimizer": {"name": "muon", "adjust_lr": "match_rms_adamw"}}, -0.5),
        ({"optimizer": {"name": "adamw8bit"}}, -1.0),
    ],
)
def test_power_of_width_follows_optimizer_and_parametrization(changes: Any, power: float):
    found = setting_of(TrainConfig.model_validate({**train(), **changes}))
    assert found.width_power == pytest.approx(power)


def test_setting_counts_a_training():
    config = TrainConfig.model_validate(train(steps=10))
    found = setting_of(config)
    assert (found.width, found.depth) == (2048, 8)
    assert (found.batch, found.tokens) == (65_536, 655_360)
    assert setting_of(config, tokens=1e6).tokens == 1e6


def test_help_of_the_option_names_every_rule() -> None:
    [row] = [line for line in (ROOT / "docs/cli.md").read_text().splitlines() if "`--rule`" in line]
    listed = row.partition("the rate: ")[2].partition(". Default")[0]
    assert re.split(r", | or ", listed) == list(RULES)
