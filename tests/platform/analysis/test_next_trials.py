"""The extension that a verdict names, as fields and as a command that the parser reads back."""

from __future__ import annotations

import math
import shlex

import pytest

from lehr.analysis.lr_fit import fit_learning_rate
from lehr.analysis.next_trials import next_seeds, next_trials, untried
from lehr.analysis.sweep_result import sweep_fit
from lehr.app.presenters.advice import with_advice
from lehr.app.presenters.ranking import SweepVerdict
from lehr.schemas.runs import RunView
from lehr.schemas.sweeps import SweepDetail, TrialView
from lehr.specs.overrides import parse_overrides

LR = "train.optimizer.lr"
# The best is the highest rate, so that the fit names one beyond it.
LOSSES = {1e-4: 3.0, 1e-3: 2.5, 1e-2: 2.0}
ADAMW = {"train": {"optimizer": {"name": "adamw"}}}


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
        spec={"parameters": {LR: {"values": list(LOSSES)}}, "run": ADAMW, **spec},
        trials=[],
    )


def advised(made: SweepDetail):
    fit = fit_learning_rate(LOSSES.items())
    return next_trials(made, untried(made, fit.next_rates, LR), LR)


def with_trials(made: SweepDetail, *more: tuple[float, str]) -> SweepDetail:
    trials = [
        TrialView(
            number=number,
            parameters={LR: rate},
            run=RunView(
                id=f"r{number}",
                name=f"r{number}",
                project="p",
                state=state,
                total_steps=1,
                tokens_per_step=1,
                created_at=0,
            ),
            value=LOSSES.get(rate),
            compared_value=LOSSES.get(rate),
        )
        for number, (rate, state) in enumerate([*((lr, "completed") for lr in LOSSES), *more], 1)
    ]
    return made.model_copy(update={"trials": trials})


def test_a_grid_gets_values_and_a_command_that_parses_to_them():
    found = advised(sweep())
    assert found.parameters == {LR: [0.1]}
    assert (found.points, found.trials) == (None, 1)
    words = shlex.split(found.command)
    assert words[:3] == ["lehr", "extend", "k3f9x2ab"]
    assert [(path, value) for path, value, _ in parse_overrides(words[3:])] == [(LR, [0.1])]


def test_a_list_gets_points():
    found = advised(sweep("list"))
    points = [{LR: rate} for rate in (0.1,)]
    assert (found.parameters, found.points) == (None, points)
    words = shlex.split(found.command)
    assert [(path, value) for path, value, _ in parse_overrides(words[3:])] == [("points", points)]


def test_trials_are_counted_with_their_seeds():
    assert advised(sweep(seeds=[0, 1])).trials == 2
    seeded = {LR: {"values": list(LOSSES)}, "train.seed": {"values": [0, 1, 2]}}
    assert advised(sweep(parameters=seeded)).trials == 3


@pytest.mark.parametrize("method", ["grid", "list", "random"])
def test_note_lists_the_rates_that_the_command_adds(method):
    made = with_trials(sweep(method))
    found = with_advice(made, SweepVerdict(None, {}, {}), "minimize")
    [note] = [note for note in found.notes if "to try next" in note]
    trials = " (1 trial)" if method != "random" else ""
    assert note.startswith(f"Learning rate to try next: 0.1{trials}.")
    assert (found.next_trials is None) == (method == "random")
    assert ("lehr extend" in note) == (method != "random")


@pytest.mark.parametrize(
    ("run", "next_rates"),
    [
        (ADAMW, (0.3,)),
        ({"train": {**ADAMW["train"], "parts": {"optimizer": "my:build"}}}, (1.0,)),
        ({"trainer": {"entry": "train.py"}}, (1.0,)),
    ],
)
def test_bounds_of_adamw_hold_for_no_unknown_optimizer(run, next_rates):
    made = with_trials(sweep(run=run), (0.1, "completed"))
    trials = [
        trial.model_copy(update={"compared_value": 1.0 / trial.parameters[LR]})
        for trial in made.trials
    ]
    fit = sweep_fit(made.model_copy(update={"trials": trials}), LR)
    assert fit.next_rates == next_rates


@pytest.mark.parametrize("one", [False, True])
def test_sweep_of_which_all_trials_diverged_gets_lower_rates(one):
    made = with_trials(sweep())
    trials = [
        trial.model_copy(update={"value": math.nan, "compared_value": None})
        for trial in made.trials[: 1 if one else None]
    ]
    found = with_advice(
        made.model_copy(update={"trials": trials}), SweepVerdict(None, {}, {}), "minimize"
    )
    rates = [5e-5] if one else [2e-5]
    assert found.next_trials.parameters == {LR: rates}
    [note] = found.notes
    assert note.startswith("All trials diverged. Learning rate to try next: ")
    assert note.endswith(f"Add it: `{found.next_trials.command}`")


@pytest.mark.parametrize(("rate", "state"), [(0.1, "cancelled"), (0.1004, "queued")])
def test_rates_that_are_all_there_are_not_listed(rate, state):
    made = with_trials(sweep(), (rate, state))
    found = with_advice(made, SweepVerdict(None, {}, {}), "minimize")
    assert found.next_trials is None
    assert not any("to try next" in note for note in found.notes)


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_search_chooses_its_points_itself(method):
    assert advised(sweep(method)) is None


def close_together(**changes: object) -> SweepDetail:
    """Return a sweep of noisy rates, closer than a factor of 1.5, with two seeds of each."""
    losses = [3.3, 3.1, 3.06, 3.05, 3.07, 3.13, 3.3]
    made = sweep(seeds=[0, 1]).model_copy(update={"parameters": [LR, "train.seed"], **changes})
    one = with_trials(made).trials[0]
    trials = [
        one.model_copy(
            update={
                "number": 2 * number + seed + 1,
                "parameters": {LR: 1e-3 * 1.4**number, "train.seed": seed},
                "value": loss + 0.3 * (seed == number % 2),
                "compared_value": loss + 0.3 * (seed == number % 2),
            }
        )
        for number, loss in enumerate(losses)
        for seed in (0, 1)
    ]
    return made.model_copy(update={"trials": trials})


def test_trials_that_are_close_together_get_more_seeds():
    found = with_advice(close_together(), SweepVerdict(None, {}, {}), "minimize", 0.1)
    assert found.next_trials.parameters == {"train.seed": [2, 3]}
    assert (found.next_trials.points, found.next_trials.trials) == (None, 14)
    assert found.next_trials.command == "lehr extend k3f9x2ab 'train.seed=[2,3]'"
    [note] = [note for note in found.notes if "2 more seeds of each rate" in note]
    assert "(14 trials, about 1.4 GPU-hours)" in note
    assert note.endswith(f"Add them: `{found.next_trials.command}`")


def test_sweep_without_seeds_of_its_own_is_not_extended_by_seeds():
    assert next_seeds(close_together(), 0) is None
    assert next_seeds(close_together(parameters=[LR]), 2) is None
    assert next_seeds(close_together(method="tpe"), 2) is None
    points = close_together(method="list", spec={"points": []})
    assert next_seeds(points, 2) is None


def test_trials_without_seeds_are_repeated_unless_they_are_being_repeated():
    made = close_together(parameters=[LR])
    found = with_advice(made, SweepVerdict(None, {}, {}), "minimize")
    more = found.next_trials
    assert more.repeat == ["r1"] * (more.trials // 2) != []
    assert any(f"by `lehr seeds TRIAL -n 2` for each ({more.trials} " in n for n in found.notes)
    run = made.trials[0].run.model_copy(update={"state": "running"})
    own = made.trials[0].model_copy(update={"run": run, "compared_value": None})
    waits = with_advice(
        made.model_copy(update={"repetitions": [own]}), SweepVerdict(None, {}, {}), "minimize"
    )
    assert (waits.next_trials, [note for note in waits.notes if "to try" in note.lower()]) == (
        None,
        [],
    )


def test_narrow_grid_takes_its_own_step_beyond_the_edge():
    fit = fit_learning_rate((1e-4 * 1.12**i, 3.0 - i / 10) for i in range(6))
    assert (fit.edge, fit.next_rates) == ("high", (2e-4,))
