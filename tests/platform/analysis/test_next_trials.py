"""The extension that a verdict names, as fields and as a command that the parser reads back."""

from __future__ import annotations

import shlex

import pytest

from lehr.analysis.lr_fit import fit_learning_rate
from lehr.analysis.next_trials import next_trials
from lehr.schemas.runs import RunView
from lehr.schemas.sweeps import SweepDetail, TrialView
from lehr.specs.overrides import parse_overrides

LR = "train.optimizer.lr"
# The best is the highest rate, so that the fit names three beyond it.
LOSSES = {1e-4: 3.0, 1e-3: 2.5, 1e-2: 2.0}


def sweep(method: str = "grid", **spec: object) -> SweepDetail:
    return SweepDetail(
        id="k3f9x2ab",
        name="grid",
        project="default",
        method=method,
        metric="val/loss",
        goal="minimize",
        parameters=[LR],
        counts={"completed": 3},
        state="finished",
        created_at=0.0,
        spec={"parameters": {LR: {"values": list(LOSSES)}}, **spec},
        trials=[],
    )


def advised(made: SweepDetail):
    fit = fit_learning_rate(LOSSES.items())
    assert fit is not None
    return next_trials(made, fit, LR)


def test_a_grid_gets_values_and_a_command_that_parses_to_them():
    found = advised(sweep())
    assert found.parameters == {LR: [0.1, 1.0, 10.0]}
    assert (found.points, found.trials) == (None, 3)
    words = shlex.split(found.command)
    assert words[:3] == ["lehr", "extend", "k3f9x2ab"]
    assert [(path, value) for path, value, _ in parse_overrides(words[3:])] == [
        (LR, [0.1, 1.0, 10.0])
    ]


def test_a_list_gets_points():
    found = advised(sweep("list"))
    points = [{LR: rate} for rate in (0.1, 1.0, 10.0)]
    assert (found.parameters, found.points) == (None, points)
    words = shlex.split(found.command)
    assert [(path, value) for path, value, _ in parse_overrides(words[3:])] == [("points", points)]


def test_trials_are_counted_with_their_seeds():
    assert advised(sweep(seeds=[0, 1])).trials == 6
    seeded = {LR: {"values": list(LOSSES)}, "train.seed": {"values": [0, 1, 2]}}
    assert advised(sweep(parameters=seeded)).trials == 9


def test_a_rate_that_is_already_there_is_not_added_again():
    made = sweep()
    run = RunView(
        id="r",
        name="r",
        project="p",
        state="queued",
        total_steps=1,
        tokens_per_step=1,
        created_at=0,
    )
    made.trials.append(TrialView(number=4, parameters={LR: 0.1}, run=run))
    assert advised(made).parameters == {LR: [1.0, 10.0]}


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_search_chooses_its_points_itself(method):
    assert advised(sweep(method)) is None
