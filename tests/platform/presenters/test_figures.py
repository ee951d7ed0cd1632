"""The figure of a sweep, and what is said beside it."""

from __future__ import annotations

import pytest

from lehr.errors import NotFound
from lehr.presenters import Presenter
from lehr.presenters.figures import sweep_figure
from lehr.specs import expand, parse_spec
from lehr.store import Store
from lehr_testing.api import SWEEP_SPEC

LR = "train.optimizer.lr"


@pytest.fixture
def detail(tmp_path):
    spec = parse_spec(SWEEP_SPEC)
    with Store.open(tmp_path / "home") as store:
        yield Presenter(store).sweeps.detail(store.sweeps.create(spec, expand(spec)))


def test_a_figure_is_drawn_over_the_parameter_that_the_sweep_varies(detail):
    assert sweep_figure(detail, None) == sweep_figure(detail, LR)
    assert sweep_figure(detail, None).parameter == LR


def test_a_parameter_that_is_not_varied_is_refused_with_the_one_that_was_meant(detail):
    with pytest.raises(NotFound) as caught:
        sweep_figure(detail, "train.optimizer.rl")
    assert caught.value.hint == f"Did you mean {LR}?"


def test_what_the_verdict_says_is_not_among_the_notes(detail):
    other = detail.model_copy(
        update={"held_out": "different", "held_out_note": "two sets", "notes": ["two sets", "else"]}
    )
    assert sweep_figure(other, None).notes == ["else"]
    assert sweep_figure(other.model_copy(update={"held_out": "same"}), None).notes == [
        "two sets",
        "else",
    ]
