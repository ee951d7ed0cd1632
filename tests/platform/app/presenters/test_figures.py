"""The figure of a sweep and its notes."""

from __future__ import annotations

import pytest

from lehr.app.presenters import Presenter
from lehr.app.presenters.figures import drawn_sweep
from lehr.errors import NotFound
from lehr.specs import expand, parse_spec
from lehr.store import Store
from lehr_testing.api import SWEEP_SPEC

LR = "train.optimizer.lr"


@pytest.fixture
def detail(tmp_path):
    spec = parse_spec(SWEEP_SPEC)
    with Store.open(tmp_path / "home") as store:
        yield Presenter(store).sweeps.detail(store.sweeps.create(spec, expand(spec)))


def test_figure_has_the_varied_parameter_as_its_axis(detail):
    assert drawn_sweep(detail, None) == drawn_sweep(detail, LR)
    assert drawn_sweep(detail, None).parameter == LR


def test_constant_parameter_is_rejected_with_the_nearest_varied_one(detail):
    with pytest.raises(NotFound) as caught:
        drawn_sweep(detail, "train.optimizer.rl")
    assert caught.value.hint == f"Did you mean {LR}?"


def test_notes_do_not_repeat_the_verdict(detail):
    other = detail.model_copy(
        update={"held_out": "different", "held_out_note": "two sets", "notes": ["two sets", "else"]}
    )
    assert drawn_sweep(other, None).notes == ["else"]
    assert drawn_sweep(other.model_copy(update={"held_out": "same"}), None).notes == [
        "two sets",
        "else",
    ]
